"""A new generation: the steps in flight are void, the workers started anew if need be, and the ledger fills it again.

Steps in flight never happened, and nothing of them is kept. The workers drop the rows of an older generation, a fresh
scheduler over an empty KV cache takes the old one's place, and answers to the dropped steps belong to nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from enginebay.engine.guard import GuardedScheduler
from enginebay.engine.parts import CoreParts
from enginebay.engine.pipeline import Pipeline
from enginebay.engine.progress import Progress
from enginebay.engine.recovery import OF_WORKERS, Action, Bounds, Evidence, Setback, Standing, decide
from enginebay.engine.requests import Requests
from enginebay.engine.steps import StepVoid
from enginebay.errors import EngineDead, RequestError, WorkerHung, WorkerLost
from enginebay.messages import FinishReason

__all__ = ["Rebirth"]

_log = logging.getLogger(__name__)


class Rebirth:
    """Carries out what ``decide`` decides. ``halt`` may come from any thread, all else is the core's own."""

    def __init__(
        self,
        parts: CoreParts,
        *,
        scheduler: GuardedScheduler,
        requests: Requests,
        pipeline: Pipeline,
        progress: Progress,
    ) -> None:
        self._parts = parts
        self._clock = parts.runtime.clock
        self._scheduler = scheduler
        self._requests = requests
        self._pipeline = pipeline
        self._progress = progress
        self._standing = Standing()
        self._mark = 0
        self._halted = False

    def halt(self) -> None:
        """The engine is about to end: whatever goes wrong from now on is its end."""
        self._halted = True

    def after(self, setback: Setback, drain: Callable[[], None] | None) -> None:
        """Do what the setback calls for; the requests then wait in a fresh scheduler, in order of arrival.

        ``drain`` is called when the workers stand and before the requests are given to the scheduler: what it aborts
        is not resurrected. Raises the setback's error when the engine has to die of it.
        """
        while True:
            action = self._decide(setback)
            self._void(setback, action)
            if action is Action.VOID:
                break
            try:
                self._respawn(setback)
                break
            except Setback as again:  # the new workers, too
                setback = again
        if drain is not None:
            drain()
        self._refill()
        if setback.evidence is Evidence.STALE:
            self._progress.dropped()

    def anew(self) -> None:
        """Begin the next generation though nothing went wrong: the KV cache's content is lost. No step is in flight."""
        assert not self._pipeline.in_flight, "between steps"
        self._parts.generation.current += 1
        self._refill()

    def _decide(self, setback: Setback) -> Action:
        progress = self._requests.num_tokens + self._requests.num_finished
        if progress != self._mark:
            self._mark, self._standing = progress, Standing()
        bounds = Bounds(
            max_failed_steps=self._parts.max_failed_steps,
            max_respawns=self._parts.max_respawns,
            restartable=self._parts.respawn is not None,
            stopping=self._halted,
            several=self._parts.num_ranks > 1,
        )
        action = decide(setback.evidence, self._standing, bounds)
        if action is Action.DIE:
            raise setback.error from None
        self._standing = self._standing.counting(action, setback.evidence)
        return action

    def _void(self, setback: Setback, action: Action) -> None:
        """No step in flight happened, and the next generation begins."""
        steps = [str(flight.step) for flight in self._pipeline.in_flight]
        dropped = StepVoid("it was dropped, and what it computed is computed again")
        self._pipeline.drop(dropped if setback.evidence is Evidence.STALE else setback.error, others=dropped)
        self._parts.generation.current += 1
        _log.warning(
            "generation %d begins%s, void: %s; %s",
            self._parts.generation.current,
            " with new workers" if action is Action.RESPAWN else "",
            f"step {', '.join(steps)}" if steps else "no step",
            setback,
        )

    def _respawn(self, setback: Setback) -> None:
        """New workers of the current generation. That they cannot be started is the end, of the same class."""
        respawn = self._parts.respawn
        assert respawn is not None, "it was decided that the workers can be started again"
        begun = self._clock.now()
        try:
            respawn()
        except (WorkerLost, WorkerHung) as error:
            raise Setback.of(error) from error
        except Exception as error:
            kind, what = type(error).__name__, str(error)
            said = what if isinstance(error, OF_WORKERS) else f"{kind}: {what}"
            raise type(setback.error)(f"{setback.error}; the workers could not be started again: {said}") from error
        if self._halted:
            raise EngineDead("the engine is closed; make a new one")
        self._progress.resume()
        _log.info(
            "the workers of generation %d stand after %.1f s", self._parts.generation.current, self._clock.now() - begun
        )

    def _refill(self) -> None:
        """A fresh scheduler with every live request. One that it refuses ends alone."""
        now_ns = self._clock.now_ns()
        self._scheduler.renew()
        for request in self._requests.void(now_ns):
            try:
                self._scheduler.add_request(request)
            except RequestError as error:
                row = self._requests.ledger.get(request.request_id)
                assert row is not None, "only live requests are given to the scheduler"
                self._requests.end(row, FinishReason.ERROR, now_ns, error=str(error))
