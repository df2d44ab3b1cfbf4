"""The engine core: one group's step loop, and everything between a request that was admitted and its last token.

One thread drives it. A step reads like its sentence: schedule, execute, sample, commit, update, tell the clients.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from enginebay import tracing
from enginebay.engine.admission import AdmissionLimits, Ask, admit, validate
from enginebay.engine.death import Death
from enginebay.engine.error_detail import log_error_detail
from enginebay.engine.execution import Execution
from enginebay.engine.guard import GuardedScheduler
from enginebay.engine.ledger import Row
from enginebay.engine.parts import CoreParts, EngineStats
from enginebay.engine.progress import Progress
from enginebay.engine.replies import check_output
from enginebay.engine.requests import Requests
from enginebay.engine.spans import TEXT_COMPLETION, RequestSpans, WallTime
from enginebay.engine.steps import InFlight, StepRecorder, StepVoid
from enginebay.errors import DuplicateRequest, EnginebayError, RequestError
from enginebay.messages import FinishReason, ModelRunnerOutput, RequestOutput, StepReport
from enginebay.runtime import Runtime

__all__ = ["EngineCore"]

_log = logging.getLogger(__name__)


class EngineCore:
    """One group: an executor, a scheduler, a ledger, and the queue of steps in flight. Not thread-safe."""

    def __init__(self, parts: CoreParts) -> None:
        self._parts = parts
        self._clock = parts.runtime.clock
        self._executor = parts.executor
        self._execution = Execution(parts)
        self._scheduler = GuardedScheduler(parts.make_scheduler, name=parts.scheduler_name)
        self._seeds = parts.runtime.entropy.stream("seeds")
        self._in_flight: deque[InFlight] = deque()
        self._death: Death | None = None
        self._stopped = False
        self._stop_deadline: float | None = None
        self._num_arrived = 0
        self._num_steps = 0
        wall = WallTime(self._clock)
        self._recorder = StepRecorder(every=parts.step_every, wall=wall)
        self._requests = Requests(
            spans=RequestSpans(model=parts.model, wall=wall),
            detokenizer=parts.detokenizer,
            eos_token_ids=parts.eos_token_ids,
            max_model_len=parts.max_model_len,
            on_finished=parts.hooks.request_finished,
        )
        self._progress = Progress(self._requests, parts)

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

    def add_request(self, ask: Ask, *, operation: str = TEXT_COMPLETION, validated: bool = False) -> None:
        """Admit a request; its seed is drawn and its arrival number given here.

        Raises ``InvalidRequest``, ``RequestTooLong`` or ``DuplicateRequest``, to this client alone; once the engine
        has died, its root cause. ``validated``: the caller has called ``validate`` already.
        """
        self._raise_if_dead()
        if not validated:
            ask = validate(ask, self.limits)
        if ask.request_id in self._requests.ledger:
            raise DuplicateRequest(
                f"request id {ask.request_id!r} is in use by an unfinished request: choose another, or abort that one",
                param="request_id",
            )
        request = admit(
            ask,
            seed=self._seeds.getrandbits(63),
            arrival=self._clock.now(),
            arrival_number=self._num_arrived,
            default_timeout=self._parts.request_timeout,
        )
        self._num_arrived += 1
        with self._or_die(spare=RequestError):
            self._scheduler.add_request(request)
        with self._or_die():
            self._requests.open(request, operation=operation, now_ns=self._clock.now_ns())

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these requests; ids that are not known (or ended by now) are passed over.

        Their last outputs, with ``finish_reason`` "abort", come with the next step's.
        """
        live = [row for request_id in request_ids if (row := self._requests.ledger.get(request_id)) is not None]
        with self._or_die():
            self._finish(live, FinishReason.ABORT)

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        if self._in_flight or self._requests.has_outputs or len(self._requests):
            return True
        with self._or_die():
            return self._death is None and self._scheduler.has_requests()

    def stats(self) -> EngineStats:
        """How the engine stands now; of a dead one, how it stood last."""
        with self._or_die():
            scheduler = self._scheduler.make_stats() if self._death is None else self._scheduler.last_stats
        return EngineStats(
            unfinished=len(self._requests),
            steps=self._num_steps,
            committed_tokens=self._requests.num_tokens,
            finished=self._requests.num_finished,
            dropped_replies=self._execution.num_dropped,
            scheduler=scheduler,
        )

    def death(self) -> EnginebayError | None:
        """A fresh error with the root cause, once the engine has died; each caller gets one of its own."""
        return None if self._death is None else self._death.error()

    def step(self, drain: Callable[[], None] | None = None) -> tuple[list[RequestOutput], bool]:
        """Run one step; returns the outputs, and whether anything was scheduled.

        ``drain`` is called between the workers' answer and the commit: what it aborts gets no token of this step.
        Raises the engine's death (``EngineDead``, ``PolicyFailed``, ``WorkerLost`` …) when it cannot go on.
        """
        self._raise_if_dead()
        with self._or_die():
            self._parts.watch.raise_if_lost()
            self._finish(self._requests.expired(self._clock.now()), FinishReason.ERROR, error="deadline")
            while len(self._in_flight) < self._parts.depth and self._launch():
                pass
            scheduled, flight, output = bool(self._in_flight), None, None
            if scheduled:
                flight = self._in_flight[0]
                output = self._execution.wait(flight)
                if drain is not None:
                    drain()
                if output is None:
                    self._void()
                else:
                    self._commit(flight, output)
                    self._in_flight.popleft()  # until now it is one that may fail
            self._progress.look(flight, dropped=scheduled and output is None)
        return self._requests.take_outputs(), scheduled

    def stop(self) -> None:
        """End what is unfinished, stop the workers by the deadline, tell observers. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self._in_flight.clear()
        self._requests.end_all(FinishReason.ABORT, self._clock.now_ns())
        if self._death is None:
            self._death = Death.closed()
            self._stop_workers()
        self._parts.hooks.engine_stopped()

    def stop_by(self, deadline: float) -> None:
        """Whatever stops the workers from now on does so by ``deadline``, in seconds of the clock; from any thread."""
        self._stop_deadline = deadline

    def cut(self) -> None:
        """Stop the workers under a step that does not end, from any thread; the step then fails, and all with it."""
        if not self._stopped:  # else it is being done
            self._executor.stop(self._workers_gone_by())

    def _launch(self) -> bool:
        """Schedule a step and send it; False when there is nothing to run."""
        start_ns = self._clock.now_ns()
        scheduled = self._scheduler.schedule()
        if not (scheduled.num_scheduled_tokens or scheduled.finished or scheduled.preempted):
            return False
        scheduled_ns = self._clock.now_ns()
        step, generation = self._num_steps, self._parts.generation.current
        self._num_steps += 1
        sent = msgspec.structs.replace(scheduled, step=step, generation=generation)
        rows = self._requests.observe(sent, scheduled_ns, self._parts.scheduler_name)
        trace = self._recorder.begin(step, start_ns, scheduled_ns)
        call = self._execution.send(sent, "" if trace is None else tracing.traceparent(trace.execute))
        flight = InFlight(
            step=step,
            generation=generation,
            scheduled=scheduled,
            sent=sent,
            rows=rows,
            start_ns=start_ns,
            scheduled_ns=scheduled_ns,
            call=call,
            trace=trace,
        )
        self._in_flight.append(flight)
        flight.grammar = self._scheduler.get_grammar_bitmask(scheduled)
        self._requests.link_step(flight)
        return True

    def _commit(self, flight: InFlight, output: ModelRunnerOutput) -> None:
        """Make the drawn tokens exist, tell the scheduler, tell the observers. Nothing in here waits."""
        check_output(output, flight, self._parts.runner_name, max_tokens=self._parts.max_tokens_per_step)
        committed = self._requests.settle(flight, output, self.limits, self._clock.now_ns())
        self._scheduler.update_from_output(flight.scheduled, committed)
        self._report(flight, sum(map(len, committed.token_ids.values())))

    def _void(self) -> None:
        """Drop every step in flight: they never happened, and nothing of them is kept.

        The next generation begins, which makes the workers drop their rows, with a fresh scheduler and an empty KV
        cache; the ledger fills it. Answers that come to the dropped steps belong to another generation.
        """
        now_ns = self._clock.now_ns()
        for flight in self._in_flight:
            self._recorder.fail(flight, StepVoid("it was dropped, and what it computed is computed again"), now_ns)
        self._in_flight.clear()
        self._parts.generation.current += 1
        self._scheduler.renew()
        for request in self._requests.void(now_ns):
            self._scheduler.add_request(request)

    def _report(self, flight: InFlight, num_committed_tokens: int) -> None:
        report = StepReport(
            step=flight.step,
            generation=flight.generation,
            num_requests=len(flight.rows),
            num_scheduled_tokens=flight.sent.total_num_scheduled_tokens,
            num_committed_tokens=num_committed_tokens,
            start_ns=flight.start_ns,
            scheduled_ns=flight.scheduled_ns,
            executed_ns=flight.executed_ns,
            end_ns=self._clock.now_ns(),
            stats=self._scheduler.make_stats(),
        )
        self._scheduler.on_step(report)
        self._recorder.finish(flight, report)
        self._parts.hooks.step_finished(report)

    def _finish(self, rows: list[Row], finish: FinishReason, error: str | None = None) -> None:
        """End rows from outside, and tell the scheduler."""
        for row in rows:
            self._requests.end(row, finish, self._clock.now_ns(), error=error)
        if rows:
            self._scheduler.finish_requests([row.request_id for row in rows], finish)

    def _raise_if_dead(self) -> None:
        if self._death is not None:
            raise self._death.error()

    @contextmanager
    def _or_die(self, *, spare: type[EnginebayError] | tuple[()] = ()) -> Iterator[None]:
        """Around all that calls a stranger's code: what it raises is the engine's death, unless it is ``spare``."""
        try:
            yield
        except spare:
            raise
        except Exception as error:
            raise self._die(error) from None

    def _die(self, error: Exception) -> EnginebayError:
        """Make ``error`` the one root cause: end every request with it, and stop the workers; returns the death."""
        if self._death is not None:
            return self._death.error()
        self._death = Death.of(error)
        log_error_detail(error, self._parts.in_force, self._in_flight, self._scheduler.last_stats)
        now_ns = self._clock.now_ns()
        for flight in self._in_flight:
            self._recorder.fail(flight, error, now_ns)
        self._in_flight.clear()
        self._requests.end_all(FinishReason.ERROR, now_ns, error=self._death.message)
        self._requests.take_outputs()
        self._stop_workers()
        return self._death.error()

    def _stop_workers(self) -> None:
        try:
            self._executor.stop(self._workers_gone_by())
        except (Exception, SystemExit) as error:
            _log.warning("stopping the workers failed: %s: %s", type(error).__name__, error)

    def _workers_gone_by(self) -> float:
        if self._stop_deadline is not None:
            return self._stop_deadline
        return self._clock.now() + self._parts.stop_timeout
