"""Requests go from a group that has no workers to one that has: which, how, and how they are found there.

Everything is done in the thread of the group that gives a request away, and in an order in which there is no moment at
which a request is nowhere: the other client knows it, the placement says so, this client lets it go, and then the other
loop gets it. An abort that comes here is sent on; one that is there before the request waits for it.
No lock is held while a loop is sent something: a dropped stream may abort from within any allocation.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from opentelemetry.trace import SpanContext

from enginebay.engine.client import InProcessClient
from enginebay.engine.collector import Tracked
from enginebay.engine.commands import Enter, Sink
from enginebay.engine.core import EngineCore
from enginebay.engine.moving import Moved
from enginebay.engine.replicas.placement import Placement
from enginebay.errors import UnknownRequest

__all__ = ["Moves"]


class Moves:
    """Between the groups of ``members``, which are numbered as they stand there: each one's core and client."""

    def __init__(
        self, places: Placement, members: Callable[[], tuple[Sequence[EngineCore], Sequence[InProcessClient]]]
    ) -> None:
        self._places = places
        self._members = members

    def join(self, *groups: int) -> None:
        """These groups, which have had no request yet, may give them away."""
        cores, clients = self._members()
        for group in groups:
            cores[group].moving.arrivals = cores[0].moving.arrivals
            cores[group].moving.go = partial(self.away, group)
            clients[group].loop.stray = partial(self.forward, group)

    def look(self) -> None:
        """See who can take requests: the placement is told who has died, and who is better passed over."""
        num_groups = len(self._places.loads())  # one may just be added
        for group, (core, client) in enumerate(itertools.islice(zip(*self._members(), strict=False), num_groups)):
            if not client.is_alive():
                self._places.lose(group)
            self._places.rest(group, not core.moving.is_well, "ill")

    def away(self, group: int, recovery: SpanContext | None) -> Mapping[int, int]:
        """Move what may leave a group, as far as others take it; how many requests went to each."""
        cores, clients = self._members()
        if not any(self._takes(other) for other in range(len(cores)) if other != group):
            return {}
        self.look()
        moving, client = cores[group].moving, clients[group]
        client.loop.hand_out()  # nothing of them may be told after what another group tells
        counts: Counter[int] = Counter()
        gone: list[Moved] = []
        for request_id in moving.candidates():
            tracked = client.tracked(request_id)
            if tracked is None:
                continue
            with self._places.moving:
                settled = self._places.settled
                to = None if settled else self._places.other(request_id, group, self._takes)
                if to is None:
                    continue
                moved = moving.leave(request_id, recovery)
                if self._hand_over(moved, tracked, group, to, frozenset({group}), group):
                    counts[to] += 1
                    gone.append(moved)
                    continue
            moving.stay(moved)
            if tracked.aborted:
                cores[group].abort([request_id])
        moving.left(gone)
        return counts

    def abort(self, request_id: str) -> None:
        """End a request wherever it is. Raises ``UnknownRequest`` for an id that no unfinished request has."""
        if not self._abort(request_id, lambda tracked: True):
            raise UnknownRequest(f"no unfinished request has the id {request_id!r}", param="request_id")

    def abort_quietly(self, request_id: str, sink: Sink) -> None:
        """End the request of this id whose outputs go to ``sink``, wherever it is, if there is one."""
        self._abort(request_id, lambda tracked: tracked.sink is sink)

    def _abort(self, request_id: str, meant: Callable[[Tracked], bool]) -> bool:
        """End a request, if it is the one that is ``meant``, wherever it is: also in a group that is about to end, from
        which it may go on. Whether there is one."""
        before, at = None, self._places.group_of(request_id)
        while at is not None and at != before:
            if (tracked := self._members()[1][at].tracked(request_id)) is not None:
                if meant(tracked):
                    tracked.aborted = True
                    self._members()[1][at].abort_tracked(tracked)
                return meant(tracked)
            before, at = at, self._places.group_of(request_id)  # it has just ended, or just gone
        return False

    def forward(self, group: int, tracked: Sink) -> None:
        """An abort of a request that is not in this group: it is for where it has gone, if it has."""
        assert isinstance(tracked, Tracked), "clients give no other sinks to their loops"
        tracked.aborted = True  # it may be on its way here
        at = self._places.group_of(tracked.request_id)
        if at is not None and at != group:
            self._members()[1][at].abort_tracked(tracked)

    def _takes(self, group: int) -> bool:
        cores, clients = self._members()
        return clients[group].is_alive() and cores[group].moving.takes

    def _hand_over(
        self, moved: Moved, tracked: Tracked, group: int, to: int, tried: frozenset[int], home: int | None
    ) -> bool:
        """Send a request to another group; whether that still takes commands. ``home``: where it came from, if it may
        go back there, or is to now."""
        _, clients = self._members()
        refused = partial(self._again, moved, tracked, to, tried | {to}, None if to == home else home)
        clients[to].know(tracked)
        self._places.moved(moved.request_id, to)
        clients[group].let_go(tracked)
        enter = Enter(
            moved=moved, sink=tracked, refused=refused, is_aborted=lambda: tracked.aborted, is_home=to == home
        )
        if clients[to].take_over(enter):
            clients[group].loop.forget(moved.request_id)
            return True
        clients[group].know(tracked)
        self._places.moved(moved.request_id, group)
        clients[to].let_go(tracked)
        return False

    def _again(self, moved: Moved, tracked: Tracked, group: int, tried: frozenset[int], home: int | None) -> bool:
        """A group has refused a request: another one gets it, at last the one that it came from; whether there is one.

        ``tried`` are those that are not asked again, ``home`` is where it came from, unless that was asked too: it goes
        there at once while nothing is to be moved.
        """
        with self._places.moving:
            _, clients = self._members()
            while True:
                able = [one for one in range(len(clients)) if one not in tried and self._takes(one)]
                back = home if home is not None and clients[home].is_alive() else None
                to = self._places.other(moved.request_id, group, able.__contains__)
                if to is None or (self._places.settled and back is not None):
                    to = back
                if to is None:
                    return False
                if self._hand_over(moved, tracked, group, to, tried, home):
                    return True
                tried, home = tried | {to}, None if to == home else home
