"""Where the requests of several groups are: the router behind a lock, and the group of each id that is in use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from enginebay.engine.admission.admit import Ask
from enginebay.engine.replicas.routing import Router
from enginebay.errors import DuplicateRequest, EnginebayError

__all__ = ["Place", "Placement"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """Where one request is, and what it counts for."""

    group: int
    cost: int


class Placement:
    """Takes an id when its request is placed, and frees it when the request has ended. Thread-safe.

    Whoever moves a request holds ``moving``. ``settled``: none is moved; written under it.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._lock = threading.RLock()  # a dropped stream may abort from within any allocation
        self.moving = threading.Lock()
        self.settled = False
        self._live: dict[str, Place] = {}

    def loads(self) -> tuple[int | None, ...]:
        """Tokens that each group has to do; None: it is lost."""
        with self._lock:
            return self._router.loads()

    def add_group(self) -> int:
        """One more group; its number."""
        with self._lock:
            return self._router.add()

    def lose(self, group: int) -> None:
        """This group takes no more requests."""
        with self._lock:
            self._router.lose(group)

    def rest(self, group: int, on: bool, why: str = "") -> None:
        """This group is passed over as long as there is another; or, if not ``on``, it no longer is for that reason."""
        with self._lock:
            self._router.rest(group, on, why)

    def settle(self, on: bool) -> None:
        """From now on no request is moved; or, if not ``on``, they are again."""
        with self.moving:
            self.settled = on

    def other(self, request_id: str, group: int, able: Callable[[int], bool]) -> int | None:
        """The group that is to have an unfinished request of ``group``, of the others that are ``able``; None: none."""
        with self._lock:
            place = self._live.get(request_id)
            if place is None or place.group != group:
                return None
            return self._router.other(lambda one: one != group and able(one))

    def moved(self, request_id: str, to: int) -> None:
        """The unfinished request of this id is in another group now."""
        with self._lock:
            place = self._live[request_id]
            self._router.give_back(place.group, place.cost)
            self._router.put(to, place.cost)
            self._live[request_id] = Place(group=to, cost=place.cost)

    def place(self, asks: Sequence[Ask], end: Callable[[], EnginebayError]) -> list[Place]:
        """A group for each. Raises ``DuplicateRequest``, or ``end()`` when no group is left; then none is placed."""
        placed: list[Place] = []
        with self._lock:
            try:
                placed.extend(self._place(ask, end) for ask in asks)  # those before one that fails are kept
            except BaseException:
                for ask, place in zip(asks, placed, strict=False):
                    self.free(ask.request_id, place)
                raise
        return placed

    def group_of(self, request_id: str) -> int | None:
        """The group of an unfinished request."""
        with self._lock:
            place = self._live.get(request_id)
        return None if place is None else place.group

    def free(self, request_id: str, place: Place | None = None) -> None:
        """The request of this id (None: whichever has it) has ended, or was never sent."""
        with self._lock:
            placed = self._live.get(request_id)
            if placed is not None and (place is None or placed is place):
                del self._live[request_id]
                self._router.give_back(placed.group, placed.cost)

    def _place(self, ask: Ask, end: Callable[[], EnginebayError]) -> Place:
        if ask.request_id in self._live:
            raise DuplicateRequest(
                f"request id {ask.request_id!r} is in use by an unfinished request: choose another, or abort that one",
                param="request_id",
            )
        taken = self._router.take(ask)
        if taken is None:
            raise end()
        place = self._live[ask.request_id] = Place(group=taken[0], cost=taken[1])
        return place
