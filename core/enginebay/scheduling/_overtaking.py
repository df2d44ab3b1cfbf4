"""How often each request that waits was overtaken: counted for all of them at once, in O(1) for each start.

A start overtakes all that began to wait before it, so it adds one to a whole beginning of the line, and nobody was
overtaken more often than who stands first. Each place therefore keeps only by how much its count is above that of the
next one, and the first one's count is kept whole: as the first leaves, its difference is taken off.
"""

from __future__ import annotations

from typing import final

from enginebay.scheduling._record import Record


@final
class _Place:
    """One request's place, linked to its neighbours. ``more`` is by how much its count is above the next one's."""

    __slots__ = ("more", "newer", "older", "record")

    def __init__(self, record: Record, older: _Place | None) -> None:
        self.record = record
        self.older = older
        self.newer: _Place | None = None
        self.more = 0


@final
class Overtaking:
    """Requests in the order in which they began to wait. ``most`` is how often the first of them was overtaken."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}
        self._first: _Place | None = None
        self._last: _Place | None = None
        self.most = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def first(self) -> Record:
        """The request that has waited longest, and was overtaken most often. Somebody must wait."""
        assert self._first is not None, "nobody waits"
        return self._first.record

    def enter(self, ticket: int, record: Record) -> None:
        """A request begins to wait; nobody else has its ticket."""
        place = self._places[ticket] = _Place(record, self._last)
        if self._last is None:
            self._first = place
        else:
            self._last.newer = place
        self._last = place

    def leave(self, ticket: int, *, started: bool) -> None:
        """The request waits no more; ``started``: it has overtaken those before it. Who is not here is passed over."""
        place = self._places.pop(ticket, None)
        if place is None:
            return
        older, newer = place.older, place.newer
        if older is None:
            self._first = newer
            self.most -= place.more
        else:
            older.newer = newer
            older.more += place.more + started
            self.most += started
        if newer is None:
            self._last = older
        else:
            newer.older = older
