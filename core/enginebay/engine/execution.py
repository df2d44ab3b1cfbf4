"""The core's dealings with the workers in a step: send it, and wait for what came of it, bounded."""

from __future__ import annotations

from concurrent.futures import Future

from enginebay.engine.parts import CoreParts
from enginebay.engine.replies import step_output
from enginebay.engine.steps import InFlight
from enginebay.errors import EngineDead, WorkerHung
from enginebay.messages import ModelRunnerOutput, Replies, SchedulerOutput

__all__ = ["Execution"]


class Execution:
    """Sends steps to one group's executor. ``num_dropped`` counts answers that belonged to another generation."""

    def __init__(self, parts: CoreParts) -> None:
        self._parts = parts
        self._executor = parts.executor
        self._clock = parts.runtime.clock
        self.num_dropped = 0

    def send(self, sent: SchedulerOutput, traceparent: str) -> Future[Replies]:
        """Send a step to all ranks, and return at once."""
        return self._executor.execute_model(sent, deadline=self._deadline(), traceparent=traceparent)

    def wait(self, flight: InFlight) -> ModelRunnerOutput | None:
        """The runner's output of the step; None when the answer came too late: the step never happened.

        It can be called again after an interrupt. Raises what a rank reported, and ``WorkerHung`` at the deadline.
        """
        if not flight.executed_ns:
            replies = self._answer(flight.future, flight, "execute_model")
            flight.executed_ns = self._clock.now_ns()
            if not self._is_current(flight, replies):
                return None
            output = step_output(self._executor, replies, self._parts.output_rank, flight.step)
            if output is not None:
                flight.sampled_ns = flight.executed_ns
                return output
        if flight.sampling is None:
            flight.sampling = self._executor.sample_tokens(flight.grammar, deadline=self._deadline())
        replies = self._answer(flight.sampling, flight, "sample_tokens")
        flight.sampled_ns = self._clock.now_ns()
        if not self._is_current(flight, replies):
            return None
        output = step_output(self._executor, replies, self._parts.output_rank, flight.step)
        if output is None:
            raise EngineDead(f"the engine stopped: sample_tokens of {self._parts.runner_name} returned None")
        return output

    def _deadline(self) -> float:
        return self._clock.now() + self._parts.call_timeout

    def _answer(self, future: Future[Replies], flight: InFlight, call: str) -> Replies:
        try:
            return self._parts.runtime.wait(future, self._deadline())
        except TimeoutError:
            detail = self._executor.health().detail
            raise WorkerHung(
                f"no answer to {call} of step {flight.step} within {self._parts.call_timeout:g} s ([deadlines] call)"
                + (f"; {detail}" if detail else "")
            ) from None

    def _is_current(self, flight: InFlight, replies: Replies) -> bool:
        if replies.generation == flight.generation == self._parts.generation.current:
            return True
        self.num_dropped += 1
        return False
