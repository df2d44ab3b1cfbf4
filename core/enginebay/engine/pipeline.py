"""The steps between their schedule and their commit, oldest first: each is numbered, sent, reported, or dropped."""

from __future__ import annotations

from collections import deque

import msgspec

from enginebay import tracing
from enginebay.engine.execution import Execution
from enginebay.engine.guard import GuardedScheduler
from enginebay.engine.parts import CoreParts
from enginebay.engine.requests import Requests
from enginebay.engine.steps import InFlight, StepRecorder
from enginebay.messages import StepReport

__all__ = ["Pipeline"]


class Pipeline:
    """The steps in flight of one group. ``num_steps`` is how many were ever begun: the number of the next one."""

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
        self._parts = parts
        self._clock = parts.runtime.clock
        self._scheduler = scheduler
        self._requests = requests
        self._execution = execution
        self._recorder = recorder

    def fill(self) -> InFlight | None:
        """Send steps until as many are in flight as may be; returns the oldest one, None when nothing runs."""
        in_flight, depth = self.in_flight, self._parts.depth
        while len(in_flight) < depth and self._launch():
            pass
        return in_flight[0] if in_flight else None

    def finish(self, flight: InFlight, num_committed_tokens: int) -> None:
        """The oldest step was committed: tell the scheduler, the trace and the observers."""
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
        self.in_flight.popleft()  # until now it is one that may fail

    def drop(self, error: Exception, *, others: Exception | None = None) -> None:
        """No step in flight happened: the oldest because of ``error``, and those after it because of ``others``."""
        now_ns, reason = self._clock.now_ns(), error
        for flight in self.in_flight:
            self._recorder.fail(flight, reason, now_ns)
            reason = others or error
        self.in_flight.clear()

    def _launch(self) -> bool:
        """Schedule a step and send it; False when there is nothing to run."""
        start_ns = self._clock.now_ns()
        scheduled = self._scheduler.schedule()
        if not (scheduled.num_scheduled_tokens or scheduled.finished or scheduled.preempted):
            return False
        scheduled_ns = self._clock.now_ns()
        step, generation = self.num_steps, self._parts.generation.current
        self.num_steps += 1
        sent = msgspec.structs.replace(scheduled, step=step, generation=generation)
        batch = self._requests.observe(sent, scheduled_ns, self._parts.scheduler_name)
        trace = self._recorder.begin(step, start_ns, scheduled_ns)
        flight = InFlight(
            step=step,
            generation=generation,
            scheduled=scheduled,
            sent=sent,
            rows=batch.rows,
            starts=batch.starts,
            drawing=batch.drawing,
            start_ns=start_ns,
            scheduled_ns=scheduled_ns,
            trace=trace,
        )
        self.in_flight.append(flight)
        if self._parts.agreement is not None:
            self._parts.agreement.note(sent, self._parts.life.weights_words)
        flight.call = self._execution.send(sent, "" if trace is None else tracing.traceparent(trace.execute))
        flight.grammar = self._scheduler.get_grammar_bitmask(scheduled)
        self._requests.link_step(flight)
        return True
