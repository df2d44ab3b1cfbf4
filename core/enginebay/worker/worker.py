"""One rank's worker: the start in its one order, then one step after the other, then the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from enginebay import tracing
from enginebay.interfaces import AsyncModelRunnerOutput, Device
from enginebay.messages import (
    Ack,
    Call,
    CompileOrWarmUpModel,
    DetermineAvailableMemory,
    ExecuteModel,
    GrammarOutput,
    InitDevice,
    InitializeKVCache,
    InitWorker,
    LifeCall,
    LoadModel,
    ModelRunnerOutput,
    Result,
    SampleTokens,
    Shutdown,
    StartPayload,
    StepResult,
)
from enginebay.plugins import PluginHost
from enginebay.worker.life import WorkerLife
from enginebay.worker.start import StartCall, WorkerStart

_ORDER: Final[tuple[type[StartCall], ...]] = (
    InitWorker,
    InitDevice,
    LoadModel,
    DetermineAvailableMemory,
    InitializeKVCache,
    CompileOrWarmUpModel,
)

_UNREAD: Final = ModelRunnerOutput()


def call_name(call: Call | type[Any]) -> str:
    """``load_model`` for ``LoadModel``: the name of a call in messages and heartbeats."""
    return str(call.__struct_config__.tag)


class Worker:
    """Executes calls, one at a time, in one thread. Construction assigns; each call does what can fail.

    ``host`` finds the plugins. ``make_device`` makes a device of a kind; None: the runner's own, else torch's.
    """

    def __init__(
        self,
        payload: StartPayload,
        *,
        host: PluginHost | None = None,
        make_device: Callable[[str], Device] | None = None,
    ) -> None:
        self._payload = payload
        self._start = WorkerStart(payload, host or PluginHost(), make_device)
        self._life = WorkerLife(self._start, payload.place.rank)
        self._done = 0  # how many calls of _ORDER have succeeded
        self._awaits_sampling = False
        self._step = -1  # of the schedule that came last
        self._closed = False

    @property
    def announce(self) -> Callable[[int], None]:
        """How the runner says that what it does now takes up to so many seconds; whoever serves the worker sets it."""
        return self._start.announce

    @announce.setter
    def announce(self, announce: Callable[[int], None]) -> None:
        self._start.announce = announce

    def handle(self, call: Call, traceparent: str = "") -> Result:
        """Do what the call asks. Raises whatever goes wrong; a call out of its turn is refused and changes nothing.

        A phase of the start that failed may be asked for again.
        """
        match call:
            case Shutdown():
                self.shutdown()
                return Ack()
            case ExecuteModel():
                self._check_ready(call)
                self._life.check_can_run(call_name(call))
                with self._start.together():
                    return self._execute_model(call, traceparent)
            case SampleTokens():
                self._check_ready(call)
                self._life.check_can_run(call_name(call))
                with self._start.together():
                    return self._sample_tokens(call)
            case _ if isinstance(call, LifeCall):
                self._check_ready(call)
                return self._life.do(call)
            case _:
                self._check_turn(call)
                result = self._start.do(call, traceparent)
                self._done += 1
                return result

    def shutdown(self) -> None:
        """Close the runner, once, and give its memory back. Allowed at any time, also after a failed start."""
        if not self._closed:
            self._closed = True
            self._life.close()
            self._start.close()

    def _execute_model(self, call: ExecuteModel, traceparent: str) -> StepResult | Ack:
        step, runner = call.scheduler_output, self._start.runner
        self._awaits_sampling = False
        self._step = step.step
        start = time.monotonic_ns()
        if traceparent:  # only recorded steps carry one
            attributes = {
                tracing.RANK: self._payload.place.rank,
                tracing.STEP_INDEX: step.step,
                tracing.TOKENS_SCHEDULED: step.total_num_scheduled_tokens,
            }
            with tracing.span(tracing.WORKER_EXECUTE_MODEL, attributes, parent=traceparent):
                output = self._resolve(runner.execute_model(step))
        else:
            output = self._resolve(runner.execute_model(step))
        if output is None and not step.constrained:  # no mask is on its way: the step need not wait for a second call
            output = self._sampled(None)
        self._awaits_sampling = output is None
        return self._step_result(output, start)

    def _sample_tokens(self, call: SampleTokens) -> StepResult | Ack:
        if not self._awaits_sampling:
            raise RuntimeError("sample_tokens came without a step before it whose execute_model answered None")
        self._awaits_sampling = False
        start = time.monotonic_ns()
        return self._step_result(self._sampled(call.grammar_output), start)

    def _sampled(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput:
        output = self._resolve(self._start.runner.sample_tokens(grammar_output))
        if output is None:
            raise TypeError("the runner's sample_tokens returned None; it returns a ModelRunnerOutput")
        return output

    def _step_result(self, output: ModelRunnerOutput | None, start_ns: int) -> StepResult | Ack:
        """Data from the output rank alone; the others acknowledge, so that a failure on any rank is seen."""
        if not self._answers:
            return Ack()
        return StepResult(output=output, step=self._step, start_ns=start_ns, end_ns=time.monotonic_ns())

    @property
    def _answers(self) -> bool:
        return self._payload.place.rank == self._payload.world.output_rank

    def _resolve(self, output: ModelRunnerOutput | AsyncModelRunnerOutput | None) -> ModelRunnerOutput | None:
        if output is None or isinstance(output, ModelRunnerOutput):
            return output
        if isinstance(output, AsyncModelRunnerOutput):
            return output.get_output() if self._answers else _UNREAD  # of the others nobody reads it: it may take time
        raise TypeError(
            f"the runner returned a {type(output).__name__}; execute_model and sample_tokens return a "
            "ModelRunnerOutput, an object with get_output(), or (execute_model only) None"
        )

    def _check_turn(self, call: StartCall) -> None:
        self._check_open(call)
        turn, names = _ORDER.index(type(call)), [call_name(one) for one in _ORDER]
        order = f"the order is {', '.join(names)}, then execute_model"
        if turn < self._done:
            raise RuntimeError(f"{call_name(call)} came a second time; {order}")
        if turn > self._done:
            raise RuntimeError(f"{call_name(call)} came before {names[self._done]}; {order}")

    def _check_ready(self, call: Call) -> None:
        self._check_open(call)
        if self._done < len(_ORDER):
            raise RuntimeError(f"{call_name(call)} came before {call_name(_ORDER[self._done])}")

    def _check_open(self, call: Call) -> None:
        if self._closed:
            raise RuntimeError(f"{call_name(call)} came after shutdown")
