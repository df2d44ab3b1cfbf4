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
from enginebay.scheduling._overtaking import Overtaking
from enginebay.scheduling._record import Record

STARVATION_BOUND = 1000
"""So many that began to wait later may start before a request; then it is next, whatever the policy says."""


class WaitingLine:
    """Who is next. ``head`` looks, ``take`` takes; in between, nothing is taken out."""

    def __init__(self, door: PolicyDoor) -> None:
        self._door = door
        self._heap: list[Entry] = []
        self._groups = Groups(door) if door.grouped else None  # holds the entries instead, if the policy has groups
        self._front: list[Entry] = []  # the first `window` of the heap, in order; empty when the policy has no window
        self._preempted: deque[tuple[int, Record]] = deque()
        self._overtaking = Overtaking()  # of all but those that wait in front anyway
        self._tickets = 0
        self._len = 0
        self._held = 0

    def __len__(self) -> int:
        return self._len

    @property
    def num_ready(self) -> int:
        """Those that wait for nothing but their turn: others are held, and could not start now."""
        return self._len - self._held

    def add(self, record: Record) -> None:
        """A new request, its key asked for once."""
        self.hold(record)
        self.release(record)

    def hold(self, record: Record) -> None:
        """A new request that waits for something beside its turn: it counts as waiting, and stands in nobody's way."""
        record.key = self._door.key(record)
        self._len += 1
        self._held += 1

    def release(self, record: Record) -> None:
        """A request that was held, and has not ended, takes the place that its key gives it."""
        self._held -= 1
        self._line_up(record)

    def put_back(self, record: Record) -> None:
        """A preempted request: to the front, or, if the policy says so, to the place that its key gives it.

        There it begins to wait anew: whoever waited meanwhile has waited longer, however often it comes back.
        """
        self._len += 1
        if self._door.may_overtake_preempted:
            self._line_up(record)
        else:
            self._preempted.appendleft((self._ticket(record), record))

    def head(self) -> Record | None:
        """The request to admit next; None when nobody waits."""
        if not self._len:
            return None
        _drop_dead(self._preempted)
        if self._preempted:
            return self._preempted[0][1]
        if self._overtaking.most >= STARVATION_BOUND:
            return self._overtaking.first
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
        self._leave(record, started=True)

    def discard(self, record: Record) -> None:
        """A request leaves the line, and will never run."""
        if not record.ticket:
            self._held -= 1
        self._leave(record, started=False)

    def _leave(self, record: Record, *, started: bool) -> None:
        self._overtaking.leave(record.ticket, started=started)
        record.ticket = 0
        self._len -= 1
        if len(self._heap if self._groups is None else self._groups) > 2 * self._len + 64:
            if self._groups is not None:
                self._groups.compact()
            self._heap = [entry for entry in self._heap if alive(entry)]
            self._door.order("key", heapify, self._heap)
            self._preempted = deque(item for item in self._preempted if item[1].ticket == item[0])

    def _ticket(self, record: Record) -> int:
        self._tickets += 1
        record.ticket = self._tickets
        return self._tickets

    def _line_up(self, record: Record) -> None:
        ticket = self._ticket(record)
        self._overtaking.enter(ticket, record)
        self._push((record.key, record.order, ticket, record))

    def _push(self, entry: Entry) -> None:
        if self._groups is not None:
            self._groups.push(entry)
            return
        self._door.order("key", self._insert, entry)

    def _insert(self, entry: Entry) -> None:
        if self._front and entry < self._front[-1]:
            insort(self._front, entry)
            entry = self._front.pop()
        heappush(self._heap, entry)

    def _pop(self) -> Entry:
        entry: Entry = self._door.order("key", heappop, self._heap)
        return entry

    def _refill_front(self) -> None:
        self._front = [entry for entry in self._front if alive(entry)]
        while len(self._front) < self._door.window and self._heap:
            entry = self._pop()
            if alive(entry):
                self._front.append(entry)


def _drop_dead(line: deque[tuple[int, Record]]) -> None:
    while line and line[0][1].ticket != line[0][0]:
        line.popleft()
