"""Drives one executor by hand, with the fake runner under it: plays the core in a few lines."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from enginebay.config import EngineConfig, RunnerConfig
from enginebay.interfaces import Executor, ExecutorContext, ExecutorPlugin, StartResult, StartSpec, WorkerExit
from enginebay.messages import (
    Call,
    CompileOrWarmUpModel,
    DetermineAvailableMemory,
    ExecuteModel,
    InitDevice,
    InitializeKVCache,
    InitWorker,
    LoadModel,
    NewRequest,
    RankPlace,
    Replies,
    SamplingParams,
    SchedulerOutput,
    StartPayload,
    StepResult,
    WorldPlan,
)
from enginebay.plugins import PluginHost
from enginebay.runtime import system_runtime
from enginebay.testing.fakes import FAKE_RUNNER, KIT, fake_model, fake_token
from enginebay.transport import encode, encode_start_payload, unwrap

VOCAB_SIZE = 1000
START_CALLS: tuple[Call, ...] = (
    InitWorker(),
    InitDevice(),
    LoadModel(),
    DetermineAvailableMemory(),
    InitializeKVCache(num_blocks=64),
    CompileOrWarmUpModel(),
)


class ExecutorDriver:
    """One executor of the installed plugin ``name``. ``folder`` holds the files that steer and watch the fake runner.

    ``patience`` (seconds) bounds every wait: it is only ever used up by an executor that hangs.
    """

    def __init__(
        self, name: str, folder: Path, *, options: Mapping[str, Any] | None = None, patience: float = 60.0
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.gate, self.closed = folder / "gate", folder / "closed"
        self.patience = patience
        self.exits: list[WorkerExit] = []
        self.generation = 0
        self.runtime = system_runtime(0)
        self._call_ids = itertools.count(1)
        self._incarnations = itertools.count(1)
        self._step = 0
        self._runner_options = {"gate": str(self.gate), "closed": str(self.closed)}
        loaded = PluginHost().load_executor(name, dict(options or {}))
        self.plugin: ExecutorPlugin[Any] = loaded.plugin
        self.executor: Executor[Any] | None = self.plugin.factory(
            ExecutorContext(
                options=loaded.options,
                runtime=self.runtime,
                encode=encode,
                unwrap=unwrap,
                next_call_id=self._call_ids.__next__,
                generation=lambda: self.generation,
                worker_exited=self.exits.append,
                call_timeout=patience,
            )
        )

    def deadline(self, seconds: float | None = None) -> float:
        """Monotonic seconds: so long from now, or as long as anything may take."""
        return self.runtime.clock.now() + (self.patience if seconds is None else seconds)

    def start(self, *, payload: bytes | None = None, runner_options: Mapping[str, str] | None = None) -> StartResult:
        """Start the worker; ``payload`` replaces what it is given, ``runner_options`` are added to the fake's."""
        incarnation = f"kit-{self.generation}-{next(self._incarnations)}"
        config = EngineConfig(
            runner=RunnerConfig(use=FAKE_RUNNER, options={**self._runner_options, **(runner_options or {})})
        )
        start = StartPayload(
            incarnation=incarnation,
            generation=self.generation,
            place=RankPlace(),
            world=WorldPlan(),
            config=config.model_dump_json(),
            model=fake_model(VOCAB_SIZE),
            runner=FAKE_RUNNER,
            block_size=16,
            max_model_len=1024,
            max_num_seqs=16,
            max_num_batched_tokens=256,
        )
        return self._live().start(
            StartSpec(
                generation=self.generation,
                world=start.world,
                payloads=(encode_start_payload(start) if payload is None else payload,),
                incarnations=(incarnation,),
                deadline=self.deadline(),
            )
        )

    def ready(self) -> None:
        """Start the worker and take it through every phase, so that steps can be run."""
        self.start()
        for call in START_CALLS:
            self.call(call)

    def call(self, call: Call, *, timeout: float | None = None) -> object:
        """The one rank's result; raises what it reported."""
        (result,) = self._live().collective_rpc(call, timeout=timeout)
        return result

    def next_step(self, how: bytes = b"") -> tuple[ExecuteModel, int]:
        """A step with one new request (that asks to misbehave, if ``how`` says so), and the token it must draw."""
        self._step += 1
        token_ids = (self._step % VOCAB_SIZE, 1, 2)
        new = NewRequest(
            request_id=f"r{self._step}",
            token_ids=token_ids,
            num_prompt_tokens=3,
            params=SamplingParams(),
            seed=0,
            block_ids=((self._step % 64,),),
            num_computed_tokens=0,
            extra={KIT: how} if how else {},
        )
        output = SchedulerOutput(
            step=self._step,
            generation=self.generation,
            new=(new,),
            finished=(f"r{self._step - 1}",),
            num_scheduled_tokens={new.request_id: 3},
        )
        return ExecuteModel(scheduler_output=output), fake_token(token_ids, VOCAB_SIZE)

    def submit(self, call: Call) -> Future[Replies]:
        """Send without waiting."""
        return self._live().submit_call(call, deadline=self.deadline()).future

    def results(self, future: Future[Replies]) -> list[object]:
        """Wait for what was submitted, and unwrap it."""
        return unwrap(self.runtime.wait(future, self.deadline()))

    def run_step(self) -> None:
        """Run one step and check its token."""
        step, token = self.next_step()
        assert token_of(self.call(step)) == token

    def stop(self, seconds: float | None = None) -> None:
        """Stop the executor by that many seconds from now."""
        self._live().stop(self.deadline(seconds))

    def wait_until_closed(self) -> None:
        """Wait until the worker has closed its runner."""
        until = time.monotonic() + self.patience
        while not self.closed.exists():
            assert time.monotonic() < until, "the worker has not closed its runner"
            time.sleep(0.001)

    def _live(self) -> Executor[Any]:
        assert self.executor is not None, "the executor was dropped"
        return self.executor


def token_of(result: object) -> int:
    """The one token of a step's result."""
    assert isinstance(result, StepResult)
    assert result.output is not None
    ((token,),) = result.output.sampled_token_ids
    return token
