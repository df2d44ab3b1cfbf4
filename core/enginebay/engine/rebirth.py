"""A new generation: the steps in flight are void, the workers started anew if need be, and the ledger fills it again.

Steps in flight never happened, and nothing of them is kept. The workers drop the rows of an older generation, a fresh
scheduler over an empty KV cache takes the old one's place, and answers to the dropped steps belong to nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from opentelemetry.trace import SpanContext

from enginebay import tracing
from enginebay.engine.guard import GuardedScheduler
from enginebay.engine.isolation import Isolation
from enginebay.engine.ledger import Row
from enginebay.engine.lending import Lender
from enginebay.engine.meanwhile import Meanwhile
from enginebay.engine.parts import CoreParts
from enginebay.engine.pipeline import Pipeline
from enginebay.engine.progress import Progress
from enginebay.engine.recovering import Recovery, recovering
from enginebay.engine.recovery import OF_WORKERS, Action, Bounds, Evidence, NoMoreStarts, NoWayBack, Setback, decide
from enginebay.engine.requests import Requests
from enginebay.engine.steps import StepVoid
from enginebay.errors import CapabilityError, EnginebayError, EngineDead, RequestError, WorkerHung, WorkerLost
from enginebay.messages import FinishReason
from enginebay.status.restarts import GiveUp, Restart

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
        self.isolation = Isolation(requests, pipeline, parts)
        self._parts = parts
        self._clock = parts.runtime.clock
        self._scheduler = scheduler
        self.requests = requests
        self.pipeline = pipeline
        self._progress = progress
        self._failed_steps = 0
        self._mark = 0
        self._halted = False
        self.meanwhile = Meanwhile(parts, requests)

    def halt(self) -> None:
        """The engine is about to end: whatever goes wrong from now on is its end, and nobody waits to start again."""
        self._halted = True
        self.meanwhile.ring()

    def after(self, setback: Setback, drain: Callable[[], None] | None) -> None:
        """Do what the setback calls for; the requests then wait in a fresh scheduler, in order of arrival.

        ``drain`` is called when the workers stand and before the requests are given to the scheduler: what it aborts
        is not resurrected. Raises the setback's error when the engine has to die of it.
        """
        action = self._decide(setback)  # the engine's death at once is no recovery
        with recovering(setback, self._parts) as recovery, self.meanwhile.of(setback, recovery):
            self._recover(setback, action, drain, recovery)

    def _recover(self, first: Setback, action: Action, drain: Callable[[], None] | None, recovery: Recovery) -> None:
        setback, convict, begun = first, None, self._clock.now()
        while action is Action.RESPAWN:
            restart = self._restart(first, setback)
            convict = self.isolation.accuse() or convict
            self._void(setback, recovery, lost=True)
            self.meanwhile.move()
            try:
                self._respawn(first, setback, restart)
                break
            except Setback as again:  # the new workers, too
                setback = again
                recovery.lost(again)
                action = self._decide(again)
        else:
            self._void(setback, recovery)
        if drain is not None:
            drain()
        if convict is not None and convict.finish is None:
            self._end(convict, first, recovery)
        with recovery.requeue(self.requests) as context:
            self._refill(context)
            recovery.isolated(self.isolation.alone)
        if action is Action.RESPAWN:
            self._say_over(self._clock.now() - begun)
        if first.evidence is Evidence.STALE:
            self._progress.dropped()

    def look(self) -> None:
        """Between two steps: whoever runs alone does so until it is known what it is."""
        if self.isolation.is_over():
            self.anew()

    def anew(self) -> None:
        """Begin the next generation though nothing went wrong: the KV cache's content is lost. No step is in flight."""
        assert not self.pipeline.in_flight, "between steps"
        self._parts.generation.current += 1
        self._refill()

    def restart(self, lender: Lender | None = None) -> None:
        """Start the workers anew on purpose, with weights of ``lender`` if one is given. No step is in flight.

        That is charged to nobody; a start that fails is a setback like any other, and is.
        """
        self._parts.generation.current += 1
        purpose = Setback(Evidence.LOST, WorkerLost("the workers were stopped to be started anew"))
        self.give_way()
        try:
            with self.meanwhile.on_purpose(self._parts.watch):
                self._respawn(purpose, purpose, Restart(after=0.0, number=0), lender)
        except Setback as setback:
            self.after(setback, None)
        else:
            self._refill()

    def give_way(self) -> None:
        """The workers go before there are others: what their KV cache holds goes with them. No step is in flight."""
        assert not self.pipeline.in_flight, "between steps"
        self._scheduler.void()

    def filled(self, others: CoreParts) -> GuardedScheduler:
        """The scheduler of other parts with every live request, for ``flip``; nothing changes here.

        Raises ``CapabilityError`` when it refuses one, and ``PolicyFailed`` for what is wrong with it.
        """
        with self._parts.cache.kept_of_failure():
            guarded = GuardedScheduler(others.make_scheduler, name=others.scheduler_name)
            for request in self.requests.waiting():
                try:
                    guarded.add_request(request)
                except RequestError as error:
                    why = f"{others.scheduler_name} does not take request {request.request_id!r:.80}, which runs"
                    raise CapabilityError(f"{why}: {error}") from error
        return guarded

    def flip(self, others: CoreParts, filled: GuardedScheduler) -> None:
        """The next generation begins with other parts, whose scheduler is ``filled``. No step is in flight."""
        assert not self.pipeline.in_flight, "between steps"
        assert not self.isolation.undecided, "all requests may run"
        if others.generation is self._parts.generation:
            self._parts.generation.current += 1
        others.watch.follow(self._parts.watch)
        self._scheduler.adopt(filled)
        self.requests.void(self._clock.now_ns())
        self._parts.exchange(others)
        self.pipeline.depth = others.depth
        self._progress.resume()

    @property
    def halted(self) -> bool:
        """Whether the engine is about to end."""
        return self._halted

    def _decide(self, setback: Setback) -> Action:
        progress = self.requests.num_tokens + self.requests.num_finished
        if progress != self._mark:
            self._mark, self._failed_steps = progress, 0
        bounds = Bounds(
            max_failed_steps=self._parts.max_failed_steps,
            restartable=self._parts.respawn is not None,
            stopping=self._halted,
            several=self._parts.num_ranks > 1,
        )
        action = decide(setback.evidence, self._failed_steps, bounds)
        if action is Action.DIE:
            self._parts.roster.failed(setback.error)
            raise setback.error from None
        if setback.evidence is Evidence.FAILED:
            self._failed_steps += 1
        return action

    def _restart(self, first: Setback, setback: Setback) -> Restart:
        """The restart that the roster allows; else the engine dies of the first setback, and says why."""
        roster = self._parts.roster
        if setback.evidence is Evidence.HUNG:
            roster.hung(str(setback.error))
        verdict = roster.lost(setback.error)
        if isinstance(verdict, GiveUp):
            if verdict.at_start:
                end = _not_again(first, f"{verdict.why}: {setback.error}")
                hangs = first.evidence is setback.evidence is Evidence.HUNG  # whoever hung keeps the place still
                raise (end if hangs else NoMoreStarts(str(end))) from setback
            raise type(first.error)(f"{first.error}; {verdict.why}") from setback
        return verdict

    def _void(self, setback: Setback, recovery: Recovery, *, lost: bool = False) -> None:
        """No step in flight happened, and the next generation begins; with new workers, where these are ``lost``."""
        steps = [str(flight.step) for flight in self.pipeline.in_flight]
        dropped = StepVoid("it was dropped, and what it computed is computed again")
        error = dropped if setback.evidence is Evidence.STALE else setback.error
        recovery.void(len(steps), self.pipeline.drop(error, others=dropped))
        generation, label = self._parts.generation.current, self._parts.roster.label
        what = f"the workers of generation {generation} are lost" if lost else f"generation {generation + 1} begins"
        void = f"step {', '.join(steps)}" if steps else "no step"
        self._parts.generation.current += 1
        if lost:
            self._scheduler.void()
        _log.warning("%s%s, void: %s; %s", label, what, void, setback)

    def _say_over(self, seconds: float) -> None:
        """The end of what began with workers that were lost, so many seconds ago."""
        roster, generation = self._parts.roster, self._parts.generation.current
        words = "; ".join(filter(None, (f"{seconds:.1f} s after the loss", roster.start_words)))
        _log.warning("%sgeneration %d begins with new workers, %s", roster.label, generation, words)

    def _end(self, convict: Row, setback: Setback, recovery: Recovery) -> None:
        """It ends alone, with what was found out about it; all others go on."""
        error = f"the workers were lost each of the three times that it ran, the last time alone: {setback.error}"
        _log.warning("%srequest %r is ended: %s", self._parts.roster.label, convict.request_id, error)
        recovery.convicted(convict.request_id, error)
        self.requests.end(convict, FinishReason.ERROR, self._clock.now_ns(), error=error)
        self.isolation.convicted = True

    def _respawn(self, first: Setback, setback: Setback, restart: Restart, lender: Lender | None = None) -> None:
        """New workers of the current generation; raises the setback that they meet, or that there can be none."""
        respawn = self._parts.respawn
        assert respawn is not None, "it was decided that the workers can be started again"
        try:
            given = () if lender is None else (lender,)
            respawn(lambda: self._back_off(restart, setback), *given)
        except NoWayBack as error:
            raise _not_again(first, str(error)) from error
        except (WorkerLost, WorkerHung) as error:
            raise Setback.of(error) from error
        except OF_WORKERS as error:
            raise Setback(Evidence.UNBORN, error) from error
        except Exception as error:
            if self._halted:
                raise
            raise _not_again(first, f"{type(error).__name__}: {error}") from error
        if self._halted:
            raise EngineDead("the engine is closed; make a new one")
        self._progress.resume()

    def _back_off(self, restart: Restart, setback: Setback) -> None:
        """Wait as long as the restart has to; ``halt`` ends it, and the engine."""
        if restart.after:
            roster, number = self._parts.roster, restart.number
            _log.warning("%srestart %d of the workers follows in %.1f s", roster.label, number, restart.after)
            roster.back_off(restart, str(setback.error))
            try:
                with tracing.span(tracing.WORKER_BACK_OFF, {tracing.RESTART: number}):
                    self.meanwhile.pause(restart.after)
            finally:
                roster.waited()
        if self._halted:
            raise EngineDead("the engine is closed; make a new one")

    def _refill(self, recovery: SpanContext | None = None) -> None:
        """A fresh scheduler with every live request that may run. One that it refuses ends alone."""
        now_ns = self._clock.now_ns()
        self._scheduler.renew()
        for request in self.isolation.admitted(self.requests.void(now_ns, recovery)):
            try:
                self._scheduler.add_request(request)
            except RequestError as error:
                row = self.requests.ledger.get(request.request_id)
                assert row is not None, "only live requests are given to the scheduler"
                self.requests.end(row, FinishReason.ERROR, now_ns, error=str(error))


def _not_again(first: Setback, why: str) -> EnginebayError:
    """What the engine dies of: the class is that of the first setback, which is the root cause."""
    return type(first.error)(f"{first.error}; the workers could not be started again: {why}")
