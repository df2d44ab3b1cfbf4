"""Waiting requests in groups whose order moves: a heap in each group, and the groups in a heap that is put right late.

A group's key may only grow. So a group that stands first with a key that is still right is the first in truth, and the
others need not be asked: a look costs what changed since the last one, however many requests or groups wait.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, NamedTuple

from enginebay.scheduling._door import PolicyDoor
from enginebay.scheduling._record import Record

Entry = tuple[tuple[Any, ...], int, int, Record]
"""(key, order of arrival, ticket, request): the first two decide, and no two requests have the same order."""

_Place = tuple[tuple[Any, ...], int, str]
"""(the group's key when it was last asked for, its number: the order in which groups began to wait; its name)."""


def alive(entry: Entry) -> bool:
    """Whether the request still waits where this entry put it."""
    return entry[3].ticket == entry[2]


class _Group(NamedTuple):
    """Its number, by which its place in the line is known, and a heap of its requests."""

    number: int
    heap: list[Entry]


class Groups:
    """Each group in which somebody waits stands in ``_line`` with its number; places of other numbers are dead."""

    def __init__(self, door: PolicyDoor) -> None:
        self._door = door
        self._groups: dict[str, _Group] = {}
        self._line: list[_Place] = []
        self._begun = 0
        self._entries = 0

    def __len__(self) -> int:
        """Entries, or places if those are more, dead ones too: after ``compact`` no more than requests that wait."""
        return max(self._entries, len(self._line))

    def push(self, entry: Entry) -> None:
        """A request waits in its group."""
        name = self._door.group(entry[3])
        group = self._groups.get(name)
        if group is None or not self._any_alive(group):  # while nobody waited its key may have fallen
            self._begun += 1
            group = self._groups[name] = _Group(self._begun, [])
            self._door.order("group_key", heappush, self._line, (self._door.group_key(name), group.number, name))
        self._door.order("key", heappush, group.heap, entry)
        self._entries += 1

    def head(self) -> Record | None:
        """The first of the group whose key is least now."""
        asked: set[str] = set()  # each once: a key that grew with every look would keep us here for ever
        while self._line:
            key, number, name = self._line[0]
            group = self._groups.get(name)
            if group is None or group.number != number:
                self._door.order("group_key", heappop, self._line)
            elif not self._any_alive(group):
                self._door.order("group_key", heappop, self._line)
                del self._groups[name]
            elif name in asked or self._door.order("group_key", _same, now := self._door.group_key(name), key):
                return group.heap[0][3]
            else:
                asked.add(name)
                self._door.order("group_key", heapreplace, self._line, (now, number, name))
        return None

    def compact(self) -> None:
        """Drop the entries of those that left, and the places of groups that are no more."""
        for group in self._groups.values():
            group.heap[:] = [entry for entry in group.heap if alive(entry)]
            self._door.order("key", heapify, group.heap)
        self._groups = {name: group for name, group in self._groups.items() if group.heap}
        self._line = [one for one in self._line if one[2] in self._groups and self._groups[one[2]].number == one[1]]
        self._door.order("group_key", heapify, self._line)
        self._entries = sum(len(group.heap) for group in self._groups.values())

    def _any_alive(self, group: _Group) -> bool:
        """Whether somebody waits in it; drops the dead before the first who does."""
        heap = group.heap
        while heap and not alive(heap[0]):
            self._door.order("key", heappop, heap)
            self._entries -= 1
        return bool(heap)


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return bool(one == other)
