"""The core's dealings with the workers in a step: send it, and wait for what came of it, bounded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from enginebay.engine.parts import CoreParts
from enginebay.engine.replies import step_result
from enginebay.engine.steps import InFlight
from enginebay.errors import EnginebayError, EngineDead, PolicyFailed, WorkerHung
from enginebay.interfaces import PendingCall
from enginebay.messages import ModelRunnerOutput, RankReply, Replies, SchedulerOutput, StepResult
from enginebay.transport import DamagedMessage, UnsendableMessage

__all__ = ["Execution"]


class Execution:
    """Sends steps to one group's executor. ``num_dropped`` counts answers to another call, step or generation."""

    def __init__(self, parts: CoreParts) -> None:
        self._parts = parts
        self._executor = parts.executor
        self._clock = parts.runtime.clock
        self.num_dropped = 0

    def send(self, sent: SchedulerOutput, traceparent: str) -> PendingCall:
        """Send a step to all ranks, and return at once."""
        what = f"execute_model of step {sent.step}"
        with self._sending(what):
            call = self._executor.execute_model(sent, deadline=self._deadline(), traceparent=traceparent)
        return self._sent(call, what)

    def wait(self, flight: InFlight) -> ModelRunnerOutput | None:
        """The runner's output of the step; None when the answer was not to it: the step never happened.

        It can be called again after an interrupt. Raises what a rank reported, and ``WorkerHung`` at the deadline.
        """
        if not flight.executed_ns:
            replies = self._answer(flight.call, flight, "execute_model")
            flight.executed_ns = self._clock.now_ns()
            result = self._result(replies, flight.call, flight)
            if result is None:
                return None
            if result.output is not None:
                flight.sampled_ns = flight.executed_ns
                return result.output
        if flight.sampling is None:
            what = f"sample_tokens of step {flight.step}"
            with self._sending(what):
                call = self._executor.sample_tokens(flight.grammar, deadline=self._deadline())
            flight.sampling = self._sent(call, what)
        replies = self._answer(flight.sampling, flight, "sample_tokens")
        flight.sampled_ns = self._clock.now_ns()
        result = self._result(replies, flight.sampling, flight)
        if result is None:
            return None
        if result.output is None:
            raise EngineDead(f"the engine stopped: sample_tokens of {self._parts.runner_name} returned None")
        return result.output

    def _deadline(self) -> float:
        return self._clock.now() + self._parts.step_timeout

    @contextmanager
    def _sending(self, what: str) -> Iterator[None]:
        """What cannot be encoded is the scheduler's fault; what else goes wrong is the executor's."""
        try:
            with self._executors_fault(f"did not take {what}"):
                yield
        except UnsendableMessage as error:
            raise PolicyFailed(f"{self._parts.scheduler_name}: {what} cannot be sent: {error}") from error

    def _sent(self, call: PendingCall, what: str) -> PendingCall:
        future: object = call.future
        if not isinstance(future, Future):
            raise self._wrong(f"submit of {what} returned {type(future).__name__}, and must return a Future of Replies")
        return call

    def _answer(self, pending: PendingCall, flight: InFlight, call: str) -> Replies:
        what = f"{call} of step {flight.step}"
        try:
            with self._executors_fault(f"failed {what}"):
                replies: object = self._parts.watch.wait(self._parts.runtime, pending.future, self._deadline())
        except TimeoutError:
            detail = self._executor.health().detail
            raise WorkerHung(
                f"no answer to {what} within {self._parts.step_timeout:g} s ([deadlines] step)"
                + (f"; {detail}" if detail else "")
            ) from None
        if not isinstance(replies, Replies):
            raise self._wrong(f"the answer to {what} is {type(replies).__name__}, and must be Replies")
        held: object = replies.replies
        if not isinstance(held, tuple) or not all(isinstance(one, RankReply) for one in held):
            raise self._wrong(f"the answer to {what} must hold a tuple of RankReply")
        return replies

    def _result(self, replies: Replies, pending: PendingCall, flight: InFlight) -> StepResult | None:
        """The output rank's result; None, and counted, when it is not the answer to this very call and step."""
        current = replies.generation == flight.generation == self._parts.generation.current
        if current and replies.call_id == pending.call_id:
            try:
                result = step_result(self._executor, replies, self._parts.output_rank, flight.step)
            except DamagedMessage as error:
                raise EngineDead(
                    f"the engine stopped: what {self._parts.runner_name} answered to step {flight.step}, "
                    f"through {self._parts.executor_name}, cannot be read: {error}"
                ) from error
            if result.step in (flight.step, -1):
                return result
        self.num_dropped += 1
        return None

    @contextmanager
    def _executors_fault(self, what: str) -> Iterator[None]:
        """Errors of ours, and a wait's end, pass; anything else is told with the executor's name."""
        try:
            yield
        except (EnginebayError, TimeoutError):
            raise
        except (Exception, SystemExit) as error:
            raise self._wrong(f"it {what}: {type(error).__name__}: {error}") from error

    def _wrong(self, what: str) -> EngineDead:
        return EngineDead(f"the engine stopped: {self._parts.executor_name}: {what}")
