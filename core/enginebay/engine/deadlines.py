"""Which live requests have reached their deadlines: a heap that is looked at in each step, and never walked."""

from __future__ import annotations

import heapq
from typing import Final

from enginebay.engine.ledger import Ledger, Row

__all__ = ["Deadlines"]

_MANY: Final = 64
"""Beyond twice the live requests and these, the deadlines are mostly of requests that have ended."""


class Deadlines:
    """Those of one ledger's rows, in monotonic seconds; one of a row that has ended since is passed over."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._heap: list[tuple[float, int, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, row: Row) -> None:
        """A row that came."""
        if row.deadline is not None:
            heapq.heappush(self._heap, (row.deadline, row.arrival_number, row.request_id))

    def passed(self, now: float) -> list[Row]:
        """The live rows whose deadline has passed; each is told once."""
        if not self._heap or self._heap[0][0] > now:
            return []
        rows: dict[str, Row] = {}
        while self._heap and self._heap[0][0] <= now:
            _, number, request_id = heapq.heappop(self._heap)
            row = self._ledger.get(request_id)
            if row is not None and row.arrival_number == number:
                rows[request_id] = row  # once, also when it has gone and come back
        return list(rows.values())

    def prune(self) -> None:
        """A row has ended: forget the deadlines of such, once they are most."""
        if len(self._heap) > 2 * len(self._ledger) + _MANY:
            self._heap = [
                (row.deadline, row.arrival_number, row.request_id) for row in self._ledger if row.deadline is not None
            ]
            heapq.heapify(self._heap)
