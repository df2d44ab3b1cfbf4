"""The core's dealings with the workers in a step: send it, and wait for what came of it, bounded."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from enginebay.engine.lookout import Lookout
from enginebay.engine.parts import CoreParts
from enginebay.engine.recovery import OF_WORKERS, Evidence, Setback
from enginebay.engine.replies import step_result
from enginebay.engine.steps import InFlight
from enginebay.engine.verdicts import NOTABLE, Pace
from enginebay.engine.watch import WorkerWatch
from enginebay.errors import EnginebayError, EngineDead, PolicyFailed, WorkerHung, in_words, is_interrupt
from enginebay.interfaces import Executor, PendingCall
from enginebay.messages import (
    ExecuteModel,
    GrammarOutput,
    ModelRunnerOutput,
    RankReply,
    Replies,
    SchedulerOutput,
    StepResult,
)
from enginebay.transport import DamagedMessage, UnsendableMessage, decode_call, encode

__all__ = ["Execution"]

_NOTABLE_NS = NOTABLE * 1e9


class Execution:
    """Sends steps to one group's executor. ``num_dropped`` counts answers to another call, step or generation.

    What goes wrong with the workers is raised as a ``Setback``; everything else as the error that it is.
    """

    def __init__(self, parts: CoreParts) -> None:
        self._parts = parts
        self._clock = parts.runtime.clock
        self._pace = Pace()
        self._made_lookout: tuple[WorkerWatch, Lookout] | None = None
        self.num_dropped = 0

    @property
    def _executor(self) -> Executor[Any]:
        return self._parts.executor

    @property
    def _lookout(self) -> Lookout:
        """For the workers that are in force; made once for them, since every step asks."""
        parts, made = self._parts, self._made_lookout
        if made is None or made[0] is not parts.watch:
            self._pace = Pace()  # of a swap's workers nothing is known
            lookout = Lookout(
                parts.watch,
                parts.executor,
                parts.runtime,
                heartbeat=parts.heartbeat,
                pace=self._pace,
                late=parts.roster.late,
            )
            made = self._made_lookout = parts.watch, lookout
        return made[1]

    def check_alive(self) -> None:
        """Raise the setback when a worker's death was reported."""
        try:
            self._parts.watch.raise_if_lost()
        except OF_WORKERS as error:
            raise Setback.of(error) from None

    def send(self, sent: SchedulerOutput, traceparent: str) -> PendingCall:
        """Send a step to all ranks, and return at once."""
        return self._sent(
            "execute_model",
            sent.step,
            lambda: self._executor.execute_model(sent, deadline=self._deadline(), traceparent=traceparent),
            sent,
        )

    def sample(self, step: int, grammar: GrammarOutput | None) -> PendingCall:
        """Have all ranks draw the tokens of the step that was sent last, and return at once."""
        return self._sent(
            "sample_tokens", step, lambda: self._executor.sample_tokens(grammar, deadline=self._deadline())
        )

    def wait(self, flight: InFlight) -> ModelRunnerOutput:
        """The runner's output of the step. It can be called again after an interrupt.

        Raises the setback that a rank reported, that the deadline has passed, or that the answer was not to this step.
        """
        try:
            return self._wait(flight)
        except OF_WORKERS as error:
            raise Setback.of(error) from error
        except PolicyFailed as refused:  # by the workers: the schedule contradicts itself, or what was said before
            raise PolicyFailed(f"{self._parts.scheduler_name}: {refused}") from refused
        except EngineDead:
            self._raise_if_unreadable(flight.sent)
            raise

    def _wait(self, flight: InFlight) -> ModelRunnerOutput:
        assert flight.call is not None, "a step is waited for after it was sent"
        if not flight.executed_ns:
            replies = self._answer(flight.call, flight, "execute_model")
            flight.executed_ns = self._clock.now_ns()
            if (took := flight.executed_ns - flight.start_ns) > _NOTABLE_NS:
                self._pace.took(flight.sent.total_num_scheduled_tokens, took / 1e9)
            output = self._result(replies, flight.call, flight).output
            if output is not None and flight.sent.constrained:  # or it is the answer to the draw, come too early
                early = f"in step {flight.step}, {self._parts.runner_name} drew its tokens before it had their masks"
                raise Setback(Evidence.FAILED, EngineDead(f"the engine stopped: {early}"), early)
            if output is not None:
                flight.sampled_ns = flight.executed_ns
                return output
            if not flight.sent.constrained:
                who = f"in step {flight.step}, {self._parts.runner_name}"
                raise EngineDead(f"the engine stopped: {who} did not draw its tokens")
        assert flight.sampling is not None, "the oldest step has had its masks"
        replies = self._answer(flight.sampling, flight, "sample_tokens")
        flight.sampled_ns = self._clock.now_ns()
        result = self._result(replies, flight.sampling, flight)
        if result.output is None:
            raise EngineDead(f"the engine stopped: sample_tokens of {self._parts.runner_name} returned None")
        return result.output

    def _deadline(self) -> float:
        return self._clock.now() + self._parts.step_timeout

    def _sent(
        self, what: str, step: int, send: Callable[[], PendingCall], schedule: SchedulerOutput | None = None
    ) -> PendingCall:
        """What cannot be encoded is the scheduler's fault; what else goes wrong is the executor's."""
        try:
            call = send()
        except UnsendableMessage as error:
            raise PolicyFailed(
                f"{self._parts.scheduler_name}: {what} of step {step} cannot be sent: {error}"
            ) from error
        except OF_WORKERS as error:
            raise Setback.of(error) from error
        except (EnginebayError, TimeoutError):
            if schedule is not None:
                self._raise_if_unreadable(schedule)
            raise
        except BaseException as error:
            raise self._failed(f"did not take {what} of step {step}", error) from error
        future: object = call.future
        if not isinstance(future, Future):
            what = f"submit of {what} of step {step} returned {type(future).__name__}"
            raise self._wrong(f"{what}, and must return a Future of Replies")
        return call

    def _answer(self, pending: PendingCall, flight: InFlight, call: str) -> Replies:
        try:
            replies: object = self._lookout.wait(pending.future, self._deadline(), flight.sent)
        except EnginebayError:
            raise
        except TimeoutError:
            detail = self._lookout.who()
            self._lookout.show_stacks()
            raise WorkerHung(
                f"no answer to {call} of step {flight.step} within {self._parts.step_timeout:g} s ([deadlines] step)"
                + (f"; {detail}" if detail else "")
            ) from None
        except BaseException as error:
            raise self._failed(f"failed {call} of step {flight.step}", error) from error
        if not isinstance(replies, Replies):
            what = f"the answer to {call} of step {flight.step} is {type(replies).__name__}"
            raise self._wrong(f"{what}, and must be Replies")
        held: object = replies.replies
        if not isinstance(held, tuple) or [one for one in held if not isinstance(one, RankReply)]:
            raise self._wrong(f"the answer to {call} of step {flight.step} must hold a tuple of RankReply")
        return replies

    def _result(self, replies: Replies, pending: PendingCall, flight: InFlight) -> StepResult:
        """The output rank's result. That it is not the answer to this very call and step is counted, and a setback."""
        current = replies.generation == flight.generation == self._parts.generation.current
        if current and replies.call_id == pending.call_id:
            try:
                result = step_result(
                    self._executor,
                    replies,
                    flight.step,
                    output_rank=self._parts.output_rank,
                    num_ranks=self._parts.num_ranks,
                    name=self._parts.executor_name,
                )
            except DamagedMessage as error:
                raise EngineDead(
                    f"the engine stopped: what {self._parts.runner_name} answered to step {flight.step}, "
                    f"through {self._parts.executor_name}, cannot be read: {error}"
                ) from error
            if result.step in (flight.step, -1):
                return result
        self.num_dropped += 1
        stale = f"{self._parts.executor_name} answered step {flight.step} for another call, step or generation"
        raise Setback(Evidence.STALE, EngineDead(f"the engine stopped: {stale}"), stale)

    def _raise_if_unreadable(self, schedule: SchedulerOutput) -> None:
        """Asked when a step has failed: values of wrong types are the scheduler's fault, wherever they were found."""
        try:
            decode_call(encode(ExecuteModel(scheduler_output=schedule)))
        except (DamagedMessage, UnsendableMessage) as error:
            name = self._parts.scheduler_name
            raise PolicyFailed(f"{name}: step {schedule.step} cannot be read by the workers: {error}") from error

    def _failed(self, what: str, error: BaseException) -> EngineDead:
        if is_interrupt(error):
            raise error
        return self._wrong(f"it {what}: {in_words(error)}")

    def _wrong(self, what: str) -> EngineDead:
        return EngineDead(f"the engine stopped: {self._parts.executor_name}: {what}")
