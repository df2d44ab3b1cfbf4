"""Waiting requests in groups whose order moves: a heap in each group, and the groups in a heap that is put right late.

A group's key may only grow. So a group that stands first with a key that is still right is the first in truth, and the
others need not be asked: a look costs what changed since the last one, however many requests or groups wait.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from enginebay.scheduling._door import PolicyDoor
from enginebay.scheduling._record import Record

Entry = tuple[tuple[Any, ...], int, int, Record]
"""(key, order of arrival, ticket, request): the first two decide, and no two requests have the same order."""

_Place = tuple[tuple[Any, ...], int, str]
"""(the group's key when it was last asked for, the order in which groups began to wait, its name)."""


def alive(entry: Entry) -> bool:
    """Whether the request still waits where this entry put it."""
    return entry[3].ticket == entry[2]


class Groups:
    """Each group that has entries stands in ``_line`` once."""

    def __init__(self, door: PolicyDoor) -> None:
        self._door = door
        self._groups: dict[str, list[Entry]] = {}
        self._line: list[_Place] = []
        self._begun = 0
        self._entries = 0

    def __len__(self) -> int:
        return self._entries

    def push(self, entry: Entry) -> None:
        """A request waits in its group."""
        name = self._door.group(entry[3])
        heap = self._groups.get(name)
        if heap is None:
            heap = self._groups[name] = []
            self._begun += 1
            self._door.order("group_key", heappush, self._line, (self._door.group_key(name), self._begun, name))
        self._door.order("key", heappush, heap, entry)
        self._entries += 1

    def head(self) -> Record | None:
        """The first of the group whose key is least now."""
        asked: set[str] = set()  # each once: a key that grew with every look would keep us here for ever
        while self._line:
            key, number, name = self._line[0]
            heap = self._groups[name]
            while heap and not alive(heap[0]):
                self._door.order("key", heappop, heap)
                self._entries -= 1
            if not heap:
                self._door.order("group_key", heappop, self._line)
                del self._groups[name]
            elif name in asked or (now := self._door.group_key(name)) == key:
                return heap[0][3]
            else:
                asked.add(name)
                self._door.order("group_key", heapreplace, self._line, (now, number, name))
        return None

    def compact(self) -> None:
        """Drop the entries of those that left."""
        for heap in self._groups.values():
            heap[:] = [entry for entry in heap if alive(entry)]
            self._door.order("key", heapify, heap)
        self._entries = sum(len(heap) for heap in self._groups.values())
