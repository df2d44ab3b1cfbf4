"""Brings what the book says to one sink: the newest of each worker, in one write, and again when it did not go.

Owns what this sink has acknowledged. ``tick`` is called by one thread, which alone waits for sinks; it decides by the
clock that it is given, and sleeps nowhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from enginebay.errors import in_words, is_interrupt, one_line
from enginebay.interfaces import StatusConflict, StatusSink, Stored
from enginebay.messages import Phase, Slot, StatusRecord, WorkerStatus
from enginebay.status._merge import held_back, merged
from enginebay.status._normal import same_content
from enginebay.status.backoff import BackOff
from enginebay.status.book import Entry, StatusBook

__all__ = ["FULL_PASS", "SinkHealth", "SinkSync"]

_LOG = logging.getLogger(__name__)

FULL_PASS: Final = 10.0
"""Seconds between passes that also look whether the sink still says what we said."""
_WINDOW: Final = 1.0
"""Changes that are not urgent are told at most once in so many seconds."""
_TRIES: Final = 3
"""Writes of one record within a pass, where others write to it at the same time."""
_FAILURES_OF_A_PASS: Final = 2
"""So many slots that are not taken, and the sink is down: each of them may have cost a client's timeout."""
_AGAIN = BackOff(first=0.5, most=30.0)


@dataclass(frozen=True, kw_only=True)
class SinkHealth:
    """How a sink does: failed calls in a row, what the last one said, and records that it has not acknowledged."""

    name: str
    failures: int
    error: str
    behind: int


@dataclass(slots=True)
class _Seen:
    """What is known of one incarnation's record in the sink: ``version`` was acknowledged, and of ``held_back`` all but
    its end was written, which is told when it is one. ``silent``: a later life stands there, as was seen last."""

    tag: str = ""
    version: int = 0
    held_back: int = 0
    record: StatusRecord | None = None
    written: float = float("-inf")
    silent: bool = False


class SinkSync:
    """One sink's thread of the story. Not thread-safe: one thread calls ``tick``."""

    def __init__(
        self,
        name: str,
        sink: StatusSink[Any],
        book: StatusBook,
        *,
        now: Callable[[], float],
        draw: Callable[[], float],
        acknowledged: Callable[[StatusRecord, float], None] = lambda record, waited: None,
    ) -> None:
        """``draw``: 0 to 1, for the jitter. ``acknowledged``: told of each record and of how long its change waited."""
        self.name = name
        self._sink, self._book = sink, book
        self._now, self._draw, self._acknowledged = now, draw, acknowledged
        self._owners = book.owners
        self._seen: dict[str, _Seen] = {}
        self._failures = 0
        self._error = ""
        self._retry_at = float("-inf")

    def health(self) -> SinkHealth:
        """From any thread."""
        behind = len(self._late())
        return SinkHealth(name=self.name, failures=self._failures, error=self._error, behind=behind)

    def due(self) -> float | None:
        """When ``tick`` has something to do by itself, in seconds of the clock: a retry, or a change held for its
        window; None: nothing before the next change or full pass."""
        late = self._late()
        return max(self._retry_at, min(self._may_go(entry) for entry in late)) if late else None

    def tick(self, *, full: bool = False, last: bool = False) -> None:
        """Write what is not acknowledged; ``full``: and what others have changed. Raises nothing of the sink's.

        One slot that the sink does not take keeps no other from its turn. ``last``: no other pass follows, and a sink
        that has failed is asked once more.
        """
        if self._now() < self._retry_at and not last:
            return
        failed: list[BaseException] = []
        waiting = self._waiting(entries := self._book.entries())
        for entry in entries:
            if entry.status.incarnation.id in waiting:  # perhaps no more
                waiting = self._waiting(self._book.entries())
            try:
                self._one(entry, waiting.get(entry.status.incarnation.id), full=full)
            except BaseException as error:
                if is_interrupt(error):
                    raise
                failed.append(error)
                if len(failed) == _FAILURES_OF_A_PASS:
                    break
        if full:
            self._forget()
        if failed:
            self._failed(failed[0])
            return
        if self._failures:
            _LOG.info("status sink %s takes statuses again", self.name)
        self._failures, self._error = 0, ""

    def _one(self, entry: Entry, elder: Entry | None, *, full: bool) -> None:
        """``elder``: the life that it waits for."""
        if self.name in entry.done:
            return
        if elder is not None:
            if entry.record.finished and not elder.record.finished:  # it has never had the slot, and never will
                self._book.let_go(entry.status.incarnation.id, self.name)
            return
        if self._behind(entry):
            if full or self._may_go(entry) <= self._now():
                self._write(entry)
        elif full:
            self._reconcile(entry)
        self._let_go(entry)

    def _failed(self, error: BaseException) -> None:
        self._failures += 1
        self._error = one_line(in_words(error), 300)
        self._retry_at = self._now() + _AGAIN.after(self._failures, self._draw())
        if self._failures == 1:
            _LOG.warning("status sink %s: %s; it is tried again", self.name, self._error)

    def _late(self) -> list[Entry]:
        """What could be written, and is not."""
        waiting = self._waiting(entries := self._book.entries())
        return [one for one in entries if self._behind(one) and one.status.incarnation.id not in waiting]

    def _waiting(self, entries: Sequence[Entry]) -> dict[str, Entry]:
        """Of each life that is not to be written yet, by its id, the one that has its slot: they come in their order.

        While others are started beside those that serve, the record is that of who serves, and it has its end there
        before the next begins.
        """
        first: dict[Slot, Entry] = {}
        waiting: dict[str, Entry] = {}
        for entry in sorted(entries, key=lambda one: one.status.incarnation.order):
            if (elder := first.get(entry.status.slot)) is not None:
                waiting[entry.status.incarnation.id] = elder
            elif not self._gives_way(entry):
                first[entry.status.slot] = entry
        return waiting

    def _gives_way(self, entry: Entry) -> bool:
        seen = self._seen.get(entry.status.incarnation.id)
        silent = seen is not None and seen.silent
        return self.name in entry.done or silent or (entry.left and not self._behind(entry))

    def _behind(self, entry: Entry) -> bool:
        seen = self._seen.get(entry.status.incarnation.id)
        if self.name in entry.done or (seen is not None and seen.silent):
            return False
        return seen is None or max(seen.version, seen.held_back) < entry.record.version

    def _may_go(self, entry: Entry) -> float:
        seen = self._seen.get(entry.status.incarnation.id)
        if seen is None or seen.record is None or _urgent(seen.record.status, entry.status):
            return float("-inf")
        return seen.written + _WINDOW

    def _write(self, entry: Entry) -> None:
        local, key = entry.record, entry.status.incarnation.id
        seen = self._seen.setdefault(key, _Seen())
        for _ in range(_TRIES):
            remote = None if seen.record is None else seen.record.status
            if held_back(local.status):
                seen.held_back = local.version
                if remote is None:
                    return
            record = replace(local, status=merged(remote, local.status, self._owners))
            if held_back(local.status):
                record = replace(record, finished=False)
            try:
                if seen.record is None or not _equal(seen.record, record):
                    seen.tag = self._sink.write(record, seen.tag)
            except StatusConflict as conflict:
                if not self._resolve(local, conflict.held, seen):
                    return
                continue
            seen.record, seen.written = record, self._now()
            if not held_back(local.status):  # else its end is not told, and must be once it is one
                seen.version = local.version
                self._acknowledged(local, self._now() - entry.changed)
            return
        raise RuntimeError(f"the record of {local.status.slot.name} changed {_TRIES} times while it was written")

    def _resolve(self, local: StatusRecord, held: Stored | None, seen: _Seen) -> bool:
        """The slot holds something else than was thought: whether to write over it.

        A later life there silences this sink, for this incarnation and as long as it stands there; nothing that a sink
        holds takes a worker out of the book that stands in its slot by what we know ourselves. One of ours is no news.
        """
        own = local.status.incarnation
        if held is None:
            seen.tag, seen.record, seen.silent = "", None, False
            return True
        other, before = held.record.status.incarnation, seen.silent
        present = self._book.present().get(local.status.slot)
        follower = "" if present is None or present.incarnation.id == own.id else present.incarnation.id
        seen.tag, seen.record = held.tag, held.record if other.id == own.id else None
        seen.silent = other.id != own.id and (other.order > own.order or other.id == follower)
        if seen.silent and not before and self._book.get(other.id) is None:
            where = f"status sink {self.name} holds a later life of {local.status.slot.name} than this engine's"
            _LOG.warning("%s (run %d, generation %d): it is told nothing while that stands there", where, *other.order)
        return not seen.silent

    def _reconcile(self, entry: Entry) -> None:
        """We are the source: what differs there from what we wrote is written again; others' conditions are theirs."""
        key = entry.status.incarnation.id
        seen, held = self._seen[key], self._sink.read(entry.status.slot)
        if held is not None and held.tag == seen.tag:
            return
        same = held is not None and held.record.status.incarnation.id == key
        if same and held is not None and same_content(held.record.status, entry.status, owners=self._owners):
            seen.tag, seen.record = held.tag, held.record
            return
        if self._resolve(entry.record, held, seen):
            self._write(entry)

    def _let_go(self, entry: Entry) -> None:
        """The record of a worker of which nothing is left is removed, once the sink has acknowledged its end."""
        key, record = entry.status.incarnation.id, entry.record
        seen = self._seen.get(key)
        if not record.finished or self.name in entry.done or seen is None:
            return
        if not seen.silent:  # else there is nothing of it there
            if seen.version < record.version:
                return
            waiting = self._waiting(self._book.entries()).items()
            heir = next((one for one, elder in waiting if elder.status.incarnation.id == key), None)
            if heir is None:
                self._sink.remove(record.status.slot, key)
            else:  # whose record is written over this one
                self._seen[heir] = _Seen(tag=seen.tag)
        self._book.let_go(key, self.name)

    def _forget(self) -> None:
        known = {entry.status.incarnation.id for entry in self._book.entries()}
        for gone in [key for key in self._seen if key not in known]:
            del self._seen[gone]


_AT_ONCE: Final = frozenset({Phase.READY, Phase.DEGRADED, Phase.TERMINATING, Phase.RECLAIMING})


def _urgent(told: WorkerStatus, now: WorkerStatus) -> bool:
    """Whether nobody should hear late of what has changed: a beginning or end of service, or of all."""
    return told.phase is not now.phase and (now.phase.terminal or now.phase in _AT_ONCE)


def _equal(one: StatusRecord, other: StatusRecord) -> bool:
    """Whether nothing would change in the sink but a number or a sign of life."""
    owners = frozenset(condition.owner for condition in (*one.status.conditions, *other.status.conditions))
    return one.finished == other.finished and same_content(one.status, other.status, owners=owners)
