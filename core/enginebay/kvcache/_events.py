"""What happened to the cache's content, in order, for those who follow it from outside (a router, say).

Whoever applies the events in order knows what can be found: a stored hash is there until it is removed or all is
cleared. Nothing is kept when nobody asked for events.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from enginebay.kvcache._hashes import HASH_BYTES


class CacheStored(Struct, frozen=True, kw_only=True, tag="stored"):
    """These blocks can be found from now on, one after the other in one text. ``num_tokens``: of all of them.

    ``parent`` is the hash of the block before the first, or the root (``root_hash``) where it is a text's beginning.
    ``group`` is the KV group: a prefix can be used when every group has what it needs of it.
    """

    hashes: tuple[bytes, ...]
    parent: bytes
    num_tokens: int
    group: int = 0


class CacheRemoved(Struct, frozen=True, kw_only=True, tag="removed"):
    """These blocks were handed out again: what they held is gone."""

    hashes: tuple[bytes, ...]
    group: int = 0


class CacheCleared(Struct, frozen=True, kw_only=True, tag="cleared"):
    """Nothing can be found: a new cache, or a reset."""


CacheEvent = CacheStored | CacheRemoved | CacheCleared


class CacheEventBatch(Struct, frozen=True, kw_only=True):
    """The events of one cache since its last batch, in order; ``replica`` is the number of the group that it is of.

    ``step`` is the last one that was committed, in ``generation``; -1 before the first.
    """

    step: int
    generation: int
    events: tuple[CacheEvent, ...]
    replica: int = 0


class EventLog:
    """Collects events until they are drained; begins with an empty cache."""

    def __init__(self) -> None:
        self._events: list[CacheEvent] = [CacheCleared()]
        self._removed: list[bytes] = []
        self._group = 0

    def stored(self, names: Sequence[bytes], root: bytes, indexes: Sequence[int], block_size: int, group: int) -> None:
        """Those at these indexes of a text were named: one event for each run without a gap, which another had named.

        ``names`` are the hashes of all of the text's blocks, ``root`` is the parent of the first.
        """
        self._close_removed()
        begin = 0
        for at, index in enumerate(indexes):
            if at + 1 == len(indexes) or indexes[at + 1] != index + 1:
                first, end = indexes[begin], index + 1
                self._events.append(
                    CacheStored(
                        hashes=tuple(names[first:end]),
                        parent=names[first - 1] if first else root,
                        num_tokens=(end - first) * block_size,
                        group=group,
                    )
                )
                begin = at + 1

    def removed(self, name: bytes) -> None:
        """This one lost its name: its hash, and the suffix of its group."""
        group = name[HASH_BYTES] if len(name) > HASH_BYTES else 0
        if group != self._group:
            self._close_removed()
            self._group = group
        self._removed.append(name[:HASH_BYTES])

    def cleared(self) -> None:
        """All names are gone, and so is what happened before."""
        self._events, self._removed = [CacheCleared()], []

    def drain(self) -> tuple[CacheEvent, ...]:
        """What was collected since the last time."""
        self._close_removed()
        events, self._events = tuple(self._events), []
        return events

    def _close_removed(self) -> None:
        if self._removed:
            self._events.append(CacheRemoved(hashes=tuple(self._removed), group=self._group))
            self._removed = []
