"""The steps between their schedule and their commit, oldest first: each is numbered, sent, reported, or dropped."""

from __future__ import annotations

from collections import deque

import msgspec
from opentelemetry.trace import SpanContext

from enginebay import tracing
from enginebay.engine.execution import Execution
from enginebay.engine.grammars import for_workers
from enginebay.engine.guard import GuardedScheduler
from enginebay.engine.parts import CoreParts
from enginebay.engine.requests import Requests
from enginebay.engine.steps import Batch, InFlight, StepRecorder
from enginebay.errors import EnginebayError, PolicyFailed, in_words, is_interrupt
from enginebay.messages import SchedulerOutput, StepReport

__all__ = ["Pipeline"]


class Pipeline:
    """The steps in flight of one group. ``num_steps`` is how many were ever begun: the number of the next one;
    ``depth`` is how many may be in flight."""

    def __init__(
        self,
        parts: CoreParts,
        *,
        scheduler: GuardedScheduler,
        requests: Requests,
        execution: Execution,
        recorder: StepRecorder,
    ) -> None:
        self.in_flight: deque[InFlight] = deque()
        self.num_steps = 0
        self.depth = parts.depth
        self._parts = parts
        self._clock = parts.runtime.clock
        self._scheduler = scheduler
        self._requests = requests
        self._execution = execution
        self._recorder = recorder

    def fill(self) -> InFlight | None:
        """Send steps until as many are in flight as may be; returns the oldest one, None when nothing runs.

        A step whose masks wait for tokens of the steps before it gets them here, once those are committed. Until then
        nothing is sent behind it: the workers hold its scores.
        """
        in_flight, depth = self.in_flight, self.depth
        if in_flight and in_flight[-1].owes_masks:
            self._sample(in_flight[-1])
        while len(in_flight) < depth and not (in_flight and in_flight[-1].owes_masks) and self._launch():
            pass
        return in_flight[0] if in_flight else None

    def finish(self, flight: InFlight, num_committed_tokens: int, num_accepted_tokens: int) -> None:
        """The oldest step was committed: tell the scheduler, the trace and the observers."""
        report = StepReport(
            step=flight.step,
            generation=flight.generation,
            num_requests=len(flight.rows),
            num_scheduled_tokens=flight.sent.total_num_scheduled_tokens,
            num_committed_tokens=num_committed_tokens,
            num_proposed_tokens=sum(map(len, flight.drafts.values())) if flight.drafts else 0,
            num_accepted_tokens=num_accepted_tokens,
            start_ns=flight.start_ns,
            scheduled_ns=flight.scheduled_ns,
            executed_ns=flight.executed_ns,
            end_ns=self._clock.now_ns(),
            stats=self._scheduler.make_stats(),
            group=self._parts.roster.group,
        )
        self._scheduler.on_step(report)
        self._recorder.finish(flight, report)
        self._parts.hooks.step_finished(report)
        self._parts.cache.tell(flight.step, flight.generation)
        self.in_flight.popleft()  # until now it is one that may fail

    def drop(self, error: Exception, *, others: Exception | None = None) -> list[SpanContext]:
        """No step in flight happened: the oldest because of ``error``, and those after it because of ``others``.

        Returns the contexts of their spans, as far as they are recorded.
        """
        now_ns, reason = self._clock.now_ns(), error
        contexts = []
        for flight in self.in_flight:
            contexts.append(self._recorder.fail(flight, reason, now_ns))
            reason = others or error
        self.in_flight.clear()
        return [one for one in contexts if one is not None]

    def leave(self) -> None:
        """The engine ends: nobody waits for the steps in flight any more."""
        now_ns = self._clock.now_ns()
        for flight in self.in_flight:
            self._recorder.leave(flight, now_ns)
        self.in_flight.clear()

    def _launch(self) -> bool:
        """Schedule a step and send it; False when there is nothing to run."""
        if self._parts.agreement is not None and not len(self._requests):
            return False  # who ended is told with the next requests: at other ranks these may have come by now
        start_ns = self._clock.now_ns()
        scheduled = self._scheduler.schedule()
        if not (scheduled.num_scheduled_tokens or scheduled.finished or scheduled.preempted):
            return False
        scheduled_ns = self._clock.now_ns()
        step, generation = self.num_steps, self._parts.generation.current
        self.num_steps += 1
        sent = msgspec.structs.replace(scheduled, step=step, generation=generation)
        batch = self._observe(sent, scheduled_ns)
        if constrained := self._constrained(scheduled, batch):
            sent = msgspec.structs.replace(sent, constrained=constrained)
        if sent.new and self._requests.num_structured:
            sent = msgspec.structs.replace(sent, new=tuple(map(for_workers, sent.new)))
        trace = self._recorder.begin(step, start_ns, scheduled_ns)
        flight = InFlight(
            step=step,
            generation=generation,
            scheduled=scheduled,
            sent=sent,
            rows=batch.rows,
            partial=batch.partial,
            drafts=batch.drafts,
            start_ns=start_ns,
            scheduled_ns=scheduled_ns,
            trace=trace,
        )
        self.in_flight.append(flight)
        if self._parts.agreement is not None:
            self._parts.agreement.note(sent, self._parts.life.weights_words)
        flight.call = self._execution.send(sent, "" if trace is None else tracing.traceparent(trace.execute))
        if constrained:
            self._sample(flight)
        if trace is not None:
            flight.link_requests()
        return True

    def _observe(self, sent: SchedulerOutput, scheduled_ns: int) -> Batch:
        """Note what was scheduled. What a scheduler has put where something else belongs shows here at the latest."""
        name = self._parts.scheduler_name
        try:
            return self._requests.observe(sent, scheduled_ns, name)
        except EnginebayError:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise PolicyFailed(f"{name} scheduled a step that cannot be read: {in_words(error)}") from error

    def _constrained(self, scheduled: SchedulerOutput, batch: Batch) -> tuple[str, ...]:
        """The requests that draw under a grammar: the core's own, and those of a scheduler that has its own masks."""
        rows, partial = batch.rows, batch.partial
        for one in scheduled.constrained:
            if one not in rows or one in partial:
                raise PolicyFailed(
                    f"{self._parts.scheduler_name} constrains request {one!r}, which draws nothing in this step"
                )
        if not self._requests.num_structured:
            return scheduled.constrained
        own = [one for one in rows if one not in partial and rows[one][0].row.params.structured is not None]
        return tuple(dict.fromkeys((*own, *scheduled.constrained))) if own else scheduled.constrained

    def _sample(self, flight: InFlight) -> None:
        """Have a step's tokens drawn under their masks, if these are known: they are made while the step computes."""
        if flight is not self.in_flight[0] and not flight.knows_masks():
            return
        grammar = self._scheduler.get_grammar_bitmask(flight.scheduled)
        if grammar is None:
            live = [one for one in flight.sent.constrained if flight.rows[one][0].row.finish is None]
            if free := [one for one in live if flight.rows[one][0].row.params.structured is None]:
                raise PolicyFailed(
                    f"{self._parts.scheduler_name} constrains request {free[0]!r} in step {flight.step}, which asked "
                    "for no shape, and get_grammar_bitmask() returns no mask"
                )
            grammar = self._parts.grammars.masks([(one, flight.drafts.get(one, ())) for one in live])
        flight.sampling = self._execution.sample(flight.step, grammar)
