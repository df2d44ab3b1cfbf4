"""Who is to give way together: chosen one after the other, before any of them loses what it has computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from enginebay.kvcache import KVCacheManager, PrefixHit
from enginebay.scheduling._record import Record


@final
class Victims:
    """Running requests that are chosen, in that order. ``freed`` counts the blocks that come free when all give way.

    That is what nobody else holds, nor is to be held by the one for whose sake they do, which starts with ``hit``.
    """

    __slots__ = ("_held", "_hit", "_kv", "_records", "freed")

    def __init__(self, kv: KVCacheManager, hit: PrefixHit) -> None:
        self._kv = kv
        self._hit = {block for group in hit.block_ids for block in group}
        self._records: dict[Record, None] = {}
        self._held: dict[int, int] = {}
        self.freed = 0

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, record: Record) -> bool:
        return record in self._records

    def add(self, record: Record) -> None:
        """One more that is running."""
        refs, held = self._kv.pool.refs, self._held
        self._records[record] = None
        for block in record.sequence.held:
            held[block] = count = held.get(block, 0) + 1
            self.freed += count == refs(block) and block not in self._hit
