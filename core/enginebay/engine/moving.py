"""Requests that go on in another group: what leaves this one, what it takes over, and what keeps them here.

A request goes with its ledger row and all that is derived beside it, so that none of its tokens is drawn, said or
counted again. What is known of it as a cause of losses goes along: it does not take its chances anew in each group.
Nothing here chooses a group; who has several of them does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.trace import SpanContext

from enginebay.engine.death import OrDie
from enginebay.engine.guard import GuardedScheduler
from enginebay.engine.live import Live
from enginebay.engine.parts import CoreParts
from enginebay.engine.rebirth import Rebirth
from enginebay.engine.recovery import OF_WORKERS
from enginebay.engine.swap.fits import check_served, check_sizes
from enginebay.errors import (
    EnginebayError,
    EngineBusy,
    RequestError,
    WorkerHung,
    WorkerLost,
    in_words,
)
from enginebay.messages import FinishReason, Phase
from enginebay.runtime import Runtime

__all__ = ["Arrivals", "Moved", "Moving"]

_log = logging.getLogger(__name__)


class Arrivals:
    """Numbers of arrival; groups that take over each other's requests count together. Thread-safe."""

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.lock()
        self._next = 0

    def take(self, count: int) -> int:
        """The first of so many numbers in a row."""
        with self._lock:
            first, self._next = self._next, self._next + count
        return first


@dataclass(frozen=True, kw_only=True, eq=False)
class Moved:
    """A client's request on its way between two groups: its choices that have not ended.

    ``accused``: of which of them workers may have been lost, with those workers' slots. ``weights`` tells those that
    its tokens are of from others, ``longest`` is the most tokens that it was admitted for. ``recovery``: the trace of
    what it is moved for.
    """

    request_id: str
    lives: tuple[Live, ...]
    accused: Mapping[str, tuple[str, ...]]
    weights: str
    longest: int
    recovery: SpanContext | None = None


class Moving:
    """One group's door to others. ``takes`` and ``is_well`` may be asked from any thread, all else is the core's own.

    ``go`` is set by who has several groups: it moves what may be moved, and returns how many went to each group.
    """

    def __init__(
        self,
        parts: CoreParts,
        rebirth: Rebirth,
        scheduler: GuardedScheduler,
        die: Callable[[Exception], EnginebayError],
        death: Callable[[], EnginebayError | None],
    ) -> None:
        self.go: Callable[[SpanContext | None], Mapping[int, int]] = lambda recovery: {}
        self.arrivals = Arrivals(parts.runtime)
        self._parts, self._rebirth, self._scheduler = parts, rebirth, scheduler
        self._requests, self._isolation = rebirth.requests, rebirth.isolation
        self._clock = parts.runtime.clock
        self._death = death
        self._or_die = OrDie(die, spare=RequestError)
        self._bound: frozenset[str] = frozenset()
        self._is_over = False
        rebirth.meanwhile.move, rebirth.meanwhile.tell = self.out, self._tell

    @property
    def takes(self) -> bool:
        """Whether this group could go on with a request now, as far as can be seen from anywhere."""
        life, rebirth = self._parts.life, self._rebirth
        if self._is_over or rebirth.halted or rebirth.meanwhile.is_away or self._parts.watch.is_lost:
            return False
        return not (life.missing or life.updating or life.changing or life.void or self._isolation.alone is not None)

    @property
    def is_well(self) -> bool:
        """Whether it ``takes`` requests, and its workers are in time."""
        return self.takes and self._parts.roster.phase is not Phase.DEGRADED

    def out(self) -> None:
        """There are no workers here now: other groups go on with what may leave. No step is in flight."""
        if self._rebirth.halted or not len(self._requests):
            return
        recovery = self._rebirth.meanwhile.recovery
        moved = self.go(None if recovery is None else recovery.context)
        if moved:
            self._say(moved)
            if recovery is not None:
                recovery.moved(moved)

    def last(self, error: Exception) -> None:
        """This group ends of ``error``: other groups go on with what may leave, where its workers are the cause.

        What a living worker failed stays: it would fail elsewhere. From here on, whatever goes wrong is its end.
        """
        self._is_over = True
        self._rebirth.meanwhile.stay.clear()  # there is no other chance
        try:
            if not self._rebirth.halted and isinstance(error, OF_WORKERS):
                flights = self._rebirth.pipeline.in_flight
                if isinstance(error, (WorkerLost, WorkerHung)):
                    self._isolation.accuse()
                else:
                    self._bound = frozenset(one for flight in flights for one in flight.rows)
                if moved := self.go(None):
                    self._say(moved)
        except Exception as failed:  # its end is told all the same, to those that are still here
            label = self._parts.roster.label
            _log.warning("%smoving the requests of a group that ends failed: %s", label, in_words(failed))
        finally:
            self._rebirth.halt()

    def candidates(self) -> list[str]:
        """The ids, as clients gave them, of the requests that may leave, in order of arrival."""
        may: dict[str, bool] = {}
        for row in self._requests.ledger:
            stays = row.client_id in self._rebirth.meanwhile.stay or row.request_id in self._bound
            bound = stays or self._isolation.binds(row.request_id)
            may[row.client_id] = may.get(row.client_id, True) and not bound
        return [request_id for request_id, one in may.items() if one]

    def leave(self, request_id: str, recovery: SpanContext | None) -> Moved:
        """Take a request out, with all of its choices; ``left`` is called afterwards, or ``stay``."""
        rows = self._requests.ledger.of_client(request_id)
        accused = {row.request_id: slots for row in rows if (slots := self._isolation.leave(row.request_id))}
        return Moved(
            request_id=request_id,
            lives=tuple(self._requests.leave(row) for row in rows),
            accused=accused,
            weights=self._parts.life.weights_key,
            longest=self._parts.max_model_len,
            recovery=recovery,
        )

    def left(self, moved: Sequence[Moved]) -> None:
        """Others have these now."""
        ids = [live.row.request_id for one in moved for live in one.lives]
        if ids and not self._is_over:
            self._tell(ids, FinishReason.ABORT)

    def stay(self, moved: Moved) -> None:
        """Nobody took it: it is here as before."""
        self._open(moved)

    def refusal(self, moved: Moved) -> EnginebayError | None:
        """Why this group cannot go on with it; None: it can."""
        if (end := self._death()) is not None:
            return end
        life, requests = self._parts.life, [live.row.request() for live in moved.lives]
        if life.void or life.missing or life.updating:
            return life.refusal()
        if life.weights_key != moved.weights:
            return EngineBusy("the groups of the engine have different weights")
        try:
            self._requests.ledger.check_free(moved.request_id, requests[0].params.n)
            check_served(requests, self._parts.limits)
            check_sizes(requests, self._parts.limits, longest=moved.longest)
        except EnginebayError as error:
            return error
        return None

    def enter(self, moved: Moved, *, home: bool = False) -> None:
        """Go on with a request that is not refused. Raises ``RequestError`` when the scheduler refuses it, and then it
        is not here; or this group's death of it. ``home``: nobody else could, so it stays while this group is away."""
        now_ns = self._clock.now_ns()
        self._open(moved)
        held = moved.lives[0].row.params.structured is not None or self._isolation.alone is not None
        try:
            with self._or_die:
                self._scheduler.add_choices(() if held else [live.row.request() for live in moved.lives])
        except RequestError:
            for live in moved.lives:
                self._isolation.leave(live.row.request_id)
                self._requests.leave(live.row)
            raise
        if home:
            self._rebirth.meanwhile.stay.add(moved.request_id)
            return
        self._requests.num_moved += len(moved.lives)
        for live in moved.lives:
            live.row.recoveries += 1
            live.timeline.event("moved", now_ns, moved.recovery, self._parts.roster.group)

    def end(self, moved: Moved, error: str) -> None:
        """No group can go on with it: it ends here, with that error, and is in nobody's way."""
        self._requests.refuse(moved.lives, self._clock.now_ns(), error)

    def _tell(self, request_ids: Sequence[str], finish: FinishReason) -> None:
        """The scheduler hears that these are no more."""
        with self._or_die:
            self._scheduler.finish_requests(request_ids, finish)

    def _say(self, moved: Mapping[int, int]) -> None:
        number, label = sum(moved.values()), self._parts.roster.label
        where = ", ".join(f"{count} in group {group}" for group, count in sorted(moved.items()))
        _log.warning("%s%d request%s on in other groups: %s", label, number, "s go" if number > 1 else " goes", where)

    def _open(self, moved: Moved) -> None:
        self._requests.enter(moved.lives, self._clock.now_ns(), self._parts.roster.group)
        for request_id, slots in moved.accused.items():
            self._isolation.join(request_id, slots)
