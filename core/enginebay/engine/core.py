"""The engine core: one group's step loop, and everything between a request that was admitted and its last token.

One thread drives it. A step reads like its sentence: schedule, execute, sample, commit, update, tell the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from enginebay.engine.admission.admit import AdmissionLimits, Ask, admit, validate
from enginebay.engine.control.controls import Controls
from enginebay.engine.control.tensors import Command
from enginebay.engine.death import Death, OrDie
from enginebay.engine.error_detail import log_error_detail
from enginebay.engine.execution import Execution
from enginebay.engine.figures import Figures
from enginebay.engine.guard import GuardedScheduler
from enginebay.engine.ledger import Row
from enginebay.engine.lending import Lender
from enginebay.engine.life import Life
from enginebay.engine.moving import Moving
from enginebay.engine.parts import CoreParts, EngineStats
from enginebay.engine.pipeline import Pipeline
from enginebay.engine.progress import Progress
from enginebay.engine.rebirth import Rebirth
from enginebay.engine.recovery import OF_WORKERS, Setback
from enginebay.engine.replies import check_output
from enginebay.engine.requests import Requests
from enginebay.engine.spans import TEXT_COMPLETION, RequestSpans, WallTime
from enginebay.engine.steps import InFlight, StepRecorder
from enginebay.engine.stopping import WorkersEnd
from enginebay.engine.swap.exchange import Exchange
from enginebay.errors import EnginebayError, RequestError
from enginebay.messages import ControlDone, FinishReason, ModelRunnerOutput, RequestOutput
from enginebay.runtime import Runtime

__all__ = ["EngineCore"]


class EngineCore:
    """One group: an executor, a scheduler, a ledger, and the queue of steps in flight. Not thread-safe."""

    def __init__(self, parts: CoreParts) -> None:
        self._parts = parts
        self._clock = parts.runtime.clock
        self._execution = Execution(parts)
        self._scheduler = GuardedScheduler(parts.make_scheduler, name=parts.scheduler_name)
        self._seeds = parts.runtime.entropy.stream("seeds")
        self._death: Death | None = None
        self._or_die = OrDie(self._die)  # around all that calls a stranger's code: what it raises ends the engine
        self._stopped = False
        self._workers_end = WorkersEnd(parts)
        wall = WallTime(self._clock)
        self._requests = Requests(
            spans=RequestSpans(model=parts.model, wall=wall, group=parts.roster.group),
            detokenizer=parts.detokenizer,
            eos_token_ids=parts.eos_token_ids,
            max_model_len=lambda: parts.max_model_len,
            on_finished=parts.hooks.request_finished,
            grammars=parts.grammars,
        )
        self._progress = Progress(self._requests, parts)
        recorder = StepRecorder(every=parts.step_every, wall=wall, group=parts.roster.group)
        self._pipeline = Pipeline(
            parts, scheduler=self._scheduler, requests=self._requests, execution=self._execution, recorder=recorder
        )
        self._rebirth = Rebirth(
            parts, scheduler=self._scheduler, requests=self._requests, pipeline=self._pipeline, progress=self._progress
        )
        self.moving = Moving(parts, self._rebirth, self._scheduler, self._die, self.death)
        self._figures = Figures(parts, self._requests, self._pipeline, self._execution, self._scheduler)
        self._exchange = Exchange(parts, self._rebirth, self._workers_end, self._or_die, lambda: self._run(None))
        self._controls = Controls(
            parts, self._exchange, anew=self._anew, unfinished=lambda: len(self._requests), status=self.status
        )

    @property
    def limits(self) -> AdmissionLimits:
        """What ``validate`` needs; immutable, so that front ends may use it from any thread."""
        return self._parts.limits

    @property
    def in_force(self) -> dict[str, str]:
        """What was really chosen, as ``check`` prints it."""
        return dict(self._parts.in_force)

    @property
    def runtime(self) -> Runtime:
        """The seams that the core was given."""
        return self._parts.runtime

    @property
    def life(self) -> Life:
        """Whether requests are taken now, and which weights are in force."""
        return self._parts.life

    @property
    def lender(self) -> Lender:
        """This group as one that another can have its weights from."""
        return Lender(executor=self._parts.executor, life=self._parts.life)

    @property
    def num_unfinished(self) -> int:
        """Requests that have not ended, each choice counted."""
        return len(self._requests)

    @property
    def parts(self) -> CoreParts:
        """What it is put together from, as it is now."""
        return self._parts

    def add_request(self, ask: Ask, *, operation: str = TEXT_COMPLETION, validated: bool = False) -> None:
        """Admit a request; its seed is drawn and its arrival number given here.

        Raises ``InvalidRequest``, ``RequestTooLong`` or ``DuplicateRequest``, to this client alone; once the engine
        has died, its root cause. ``validated``: the caller has called ``validate`` already.
        """
        self._raise_if_dead()
        if refusal := self._parts.life.refusal():
            raise refusal
        ask = self._exchange.rechecked(ask) if validated else validate(ask, self.limits)
        self._requests.ledger.check_free(ask.request_id, ask.params.n)
        choices = admit(
            ask,
            seed=self._seeds.getrandbits(63),
            arrival=self._clock.now(),
            arrival_number=self.moving.arrivals.take(ask.params.n),
            default_timeout=self._parts.request_timeout,
        )
        with OrDie(self._die, spare=RequestError):
            held = ask.params.structured is not None or self._rebirth.isolation.alone is not None
            self._scheduler.add_choices(() if held else choices)
        with self._or_die:
            for request in choices:
                self._requests.open(request, operation=operation, now_ns=self._clock.now_ns())

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these requests; ids that are not known (or ended by now) are passed over.

        Their last outputs, with ``finish_reason`` "abort", come with the next step's.
        """
        live = [row for request_id in dict.fromkeys(request_ids) for row in self._requests.ledger.of_client(request_id)]
        with self._or_die:
            self._finish(live, FinishReason.ABORT)

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        if self._pipeline.in_flight or self._requests.has_outputs or len(self._requests):
            return True
        if self._parts.agreement is not None:
            return False  # who ended is told with the next requests: ranks that rest do so at times of their own
        with self._or_die:
            return self._death is None and self._scheduler.has_requests()

    def stats(self) -> EngineStats:
        """How the engine stands now; of a dead one, how it stood last."""
        with self._or_die:
            if self._death is None and not self._scheduler.is_void:
                self._scheduler.make_stats()
            return self._figures.now()

    def status(self) -> ControlDone:
        """How the engine stands, in words, and its health; from any thread, also while a step runs."""
        return self._figures.status(self._death)

    def control(self, command: Command) -> ControlDone:
        """Carry out what is asked beside requests, between steps. Raises why it is refused, or what went wrong."""
        self.mend()
        return self._controls.do(command)

    def drain(self, on: bool) -> None:
        """Take no new requests from now on; or, if not ``on``, take them again."""
        self._parts.life.draining = on
        self._parts.roster.drain(on)

    def wake(self, idle: Callable[[], None], serve: Callable[[float], None]) -> None:
        """``idle``: from any thread, a worker is lost: who waits calls ``mend``; ``serve``: as ``Meanwhile`` says."""
        self._parts.watch.wake(idle)
        self._rebirth.meanwhile.serve, self._rebirth.meanwhile.wake = serve, idle

    def mend(self) -> None:
        """Start workers that were lost again, while no step is in flight. Raises the engine's death."""
        self._raise_if_dead()
        try:
            self._execution.check_alive()
        except Setback as setback:
            with self._or_die:
                self._rebirth.after(setback, None)

    def death(self) -> EnginebayError | None:
        """A fresh error with the root cause, once the engine has died; each caller gets one of its own."""
        return None if self._death is None else self._death.error()

    def step(self, drain: Callable[[], None] | None = None) -> tuple[list[RequestOutput], bool]:
        """Run one step; returns the outputs, and whether anything was scheduled.

        ``drain`` is called between the workers' answer and the commit: what it aborts gets no token of this step.
        A setback of the workers voids the steps in flight; their requests are computed again, and nobody notices.
        Raises the engine's death (``EngineDead``, ``PolicyFailed``, ``WorkerLost`` …) when it cannot go on.
        """
        self._raise_if_dead()
        with self._or_die:
            if expired := self._requests.expired(self._clock.now()):
                self._finish(expired, FinishReason.ERROR, error="deadline")
            if self._rebirth.isolation.alone is None:
                self._requests.release(self._scheduler.add_request, self._clock.now_ns())
            try:
                scheduled = self._run(drain)
            except Setback as setback:
                self._rebirth.after(setback, drain)
                scheduled = True
        return self._requests.take_outputs(), scheduled

    def take_outputs(self) -> list[RequestOutput]:
        """What came to exist since the last step, such as the ends of those that were aborted."""
        return self._requests.take_outputs()

    def stop(self) -> None:
        """End what is unfinished, stop the workers by the deadline, tell observers. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self._death = self._death or Death.closed()
        try:
            self._pipeline.leave()
            self._requests.end_all(FinishReason.ABORT, self._clock.now_ns())
        finally:
            self._workers_end.stop()
            self._parts.hooks.engine_stopped()

    def stop_by(self, deadline: float) -> None:
        """Whatever stops the workers from now on does so by ``deadline``, in seconds of the clock; from any thread."""
        self._rebirth.halt()
        self._workers_end.stop_by(deadline)

    def cut(self) -> None:
        """Stop the workers under a step that does not end, from any thread; the step then fails, and all with it."""
        self._rebirth.halt()
        if not self._stopped:  # else it is being done
            self._workers_end.cut()

    def _run(self, drain: Callable[[], None] | None) -> bool:
        """One step in which nothing befalls the workers, else raises the ``Setback``; whether anything ran."""
        self._execution.check_alive()
        if self._rebirth.isolation.alert:
            self._rebirth.look()
        if (flight := self._pipeline.fill()) is not None:
            output = self._execution.wait(flight)
            if drain is not None:
                drain()
            self._commit(flight, output)
            if self._parts.agreement is not None and not len(self._requests):
                self._parts.agreement.rest()
        self._progress.look(flight)
        return flight is not None

    def _commit(self, flight: InFlight, output: ModelRunnerOutput) -> None:
        """Make the drawn tokens exist, tell the scheduler, tell the observers. Nothing in here waits."""
        check_output(output, flight, self._parts.runner_name, max_tokens=self._parts.max_tokens_per_step)
        requests = self._requests
        tokens, accepted = requests.num_tokens, requests.num_accepted
        committed = requests.settle(flight, output, self._parts.limits, self._clock.now_ns())
        if self._rebirth.isolation.alert:
            self._rebirth.isolation.committed(committed.token_ids)
        self._scheduler.update_from_output(flight.scheduled, committed)
        self._pipeline.finish(flight, requests.num_tokens - tokens, requests.num_accepted - accepted)

    def _finish(self, rows: list[Row], finish: FinishReason, error: str | None = None) -> None:
        """End rows from outside, and tell the scheduler."""
        for row in rows:
            self._requests.end(row, finish, self._clock.now_ns(), error=error)
        if rows:
            self._scheduler.finish_requests([row.request_id for row in rows], finish)

    def _anew(self) -> None:
        """The KV cache's content is lost: a fresh scheduler, under the next generation."""
        with self._or_die:
            self._rebirth.anew()

    def _raise_if_dead(self) -> None:
        if self._death is not None:
            raise self._death.error()

    def _die(self, error: Exception) -> EnginebayError:
        """Make ``error`` the one root cause: end every request with it, and stop the workers; returns the death."""
        if self._death is not None:
            return self._death.error()
        if self._parts.agreement is not None and isinstance(error, OF_WORKERS):
            self._workers_end.stop()  # what other ranks wait for with ours ends, and they come to compare
            error = self._parts.agreement.cause_of(error, self._parts.stop_timeout)
        self._death = Death.of(error)
        self.moving.last(error)  # and it may be what this befell
        try:
            log_error_detail(error, self._parts.in_force, self._pipeline.in_flight, self._scheduler.last_stats)
            self._pipeline.drop(error)
            self._requests.end_all(FinishReason.ERROR, self._clock.now_ns(), error=self._death.message)
            self._requests.take_outputs()
        finally:
            self._workers_end.stop()
        return self._death.error()
