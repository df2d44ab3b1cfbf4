"""The waiting line: preempted requests first, then those that wait, in the policy's order.

A heap over the keys, so that adding and taking cost the same with ten waiting as with a hundred thousand. What left
the line stays in the heap as a dead entry (its ticket no longer valid) until it comes up, or until there are many.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from heapq import heapify, heappop, heappush

from enginebay.scheduling._door import PolicyDoor
from enginebay.scheduling._groups import Entry, Groups, alive
from enginebay.scheduling._record import WAITING, Record

STARVATION_BOUND = 1000
"""So many requests may overtake the one that has waited longest; then it is next, whatever the policy says."""


class WaitingLine:
    """Who is next. ``head`` looks, ``take`` takes; in between, nothing is taken out."""

    def __init__(self, door: PolicyDoor) -> None:
        self._door = door
        self._heap: list[Entry] = []
        self._groups = Groups(door) if door.grouped else None  # holds the entries instead, if the policy has groups
        self._front: list[Entry] = []  # the first `window` of the heap, in order; empty when the policy has no window
        self._preempted: deque[tuple[int, Record]] = deque()
        self._arrivals: deque[tuple[int, Record]] = deque()
        self._tickets = 0
        self._len = 0
        self._overtaken_ticket = 0
        self._overtakers = 0

    def __len__(self) -> int:
        return self._len

    def add(self, record: Record) -> None:
        """A new request, its key asked for once."""
        self.hold(record)
        self.release(record)

    def hold(self, record: Record) -> None:
        """A new request that waits for something beside its turn: it counts as waiting, and stands in nobody's way."""
        record.key = self._door.key(record)
        self._len += 1

    def release(self, record: Record) -> None:
        """A request that was held, and has not ended, takes the place that its key gives it."""
        ticket = self._ticket(record)
        self._arrivals.append((ticket, record))
        self._push((record.key, record.order, ticket, record))

    def put_back(self, record: Record) -> None:
        """A preempted request: to the front, or, if the policy says so, to the place that its key gives it."""
        self._len += 1
        ticket = self._ticket(record)
        if self._door.may_overtake_preempted:
            self._arrivals.appendleft((ticket, record))
            self._push((record.key, record.order, ticket, record))
        else:
            self._preempted.appendleft((ticket, record))

    def head(self) -> Record | None:
        """The request to admit next; None when nobody waits."""
        if not self._len:
            return None
        _drop_dead(self._preempted)
        if self._preempted:
            return self._preempted[0][1]
        _drop_dead(self._arrivals)
        if self._arrivals:
            ticket, oldest = self._arrivals[0]
            if ticket == self._overtaken_ticket and self._overtakers >= STARVATION_BOUND:
                return oldest
        if self._groups is not None:
            return self._groups.head()
        if self._door.window:
            self._refill_front()
            return self._front[self._door.choose([entry[3] for entry in self._front])][3] if self._front else None
        while self._heap and not alive(self._heap[0]):
            self._pop()
        return self._heap[0][3] if self._heap else None

    def take(self, record: Record) -> None:
        """The head leaves the line to run."""
        if record.status is WAITING or self._door.may_overtake_preempted:
            self._count_overtaking(record)
        self.discard(record)

    def discard(self, record: Record) -> None:
        """A request leaves the line."""
        record.ticket = 0
        self._len -= 1
        if len(self._heap if self._groups is None else self._groups) > 2 * self._len + 64:
            if self._groups is not None:
                self._groups.compact()
            self._heap = [entry for entry in self._heap if alive(entry)]
            heapify(self._heap)
            self._arrivals = deque(item for item in self._arrivals if item[1].ticket == item[0])
            self._preempted = deque(item for item in self._preempted if item[1].ticket == item[0])

    def _ticket(self, record: Record) -> int:
        self._tickets += 1
        record.ticket = self._tickets
        return self._tickets

    def _count_overtaking(self, record: Record) -> None:
        _drop_dead(self._arrivals)
        ticket, oldest = self._arrivals[0]
        if ticket != self._overtaken_ticket:
            self._overtaken_ticket, self._overtakers = ticket, 0
        if oldest is not record:
            self._overtakers += 1

    def _push(self, entry: Entry) -> None:
        if self._groups is not None:
            self._groups.push(entry)
            return
        try:
            if self._front and entry < self._front[-1]:
                insort(self._front, entry)
                entry = self._front.pop()
            heappush(self._heap, entry)
        except Exception as error:
            self._door.comparing(error)

    def _pop(self) -> Entry:
        try:
            return heappop(self._heap)
        except Exception as error:
            self._door.comparing(error)

    def _refill_front(self) -> None:
        self._front = [entry for entry in self._front if alive(entry)]
        while len(self._front) < self._door.window and self._heap:
            entry = self._pop()
            if alive(entry):
                self._front.append(entry)


def _drop_dead(line: deque[tuple[int, Record]]) -> None:
    while line and line[0][1].ticket != line[0][0]:
        line.popleft()
