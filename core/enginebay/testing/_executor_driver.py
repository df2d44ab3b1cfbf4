"""Drives one executor by hand, with the fake runner under it: plays the core in a few lines."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from enginebay.config import EngineConfig, RunnerConfig, WorkerConfig
from enginebay.interfaces import (
    Executor,
    ExecutorContext,
    ExecutorPlugin,
    StartResult,
    StartSpec,
    WorkerExit,
)
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
    WorkerInfo,
    WorldPlan,
)
from enginebay.plugins import PluginHost
from enginebay.runfolder import LazyRunFolder
from enginebay.runtime import system_runtime
from enginebay.testing._executor_probes import GivenProbes
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

    ``patience`` (seconds) bounds every wait: it is only ever used up by an executor that hangs. Of ``world_size``
    ranks each is told that its world is itself alone, so that the fake needs no process group; rank 0 answers with
    tokens, the others acknowledge. ``extensions`` are worker extensions, which must be installed.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        options: Mapping[str, Any] | None = None,
        patience: float = 60.0,
        world_size: int = 1,
        extensions: tuple[str, ...] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.gate, self.closed = folder / "gate", folder / "closed"
        self.patience = patience
        self.world = WorldPlan(ranks=tuple(RankPlace(rank=r, local_rank=r) for r in range(world_size)))
        self.workers: tuple[WorkerInfo, ...] = ()
        self._extensions = extensions
        self.processes: set[int] = set()
        self.exits: list[WorkerExit] = []
        self.generation = 0
        self.runtime = system_runtime(0)
        self._call_ids = itertools.count(1)
        self._incarnations = itertools.count(1)
        self._step = 0
        self._runner_options = {"gate": str(self.gate), "closed": str(self.closed)}
        self.run_folder = LazyRunFolder()
        self.probes = GivenProbes(self.runtime)
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
                record_resource=self.probes.recorder(self.run_folder),  # knows nothing of this driver
                run_folder=self.run_folder.path,
            )
        )

    def deadline(self, seconds: float | None = None) -> float:
        """Monotonic seconds: so long from now, or as long as anything may take."""
        return self.runtime.clock.now() + (self.patience if seconds is None else seconds)

    @property
    def own_processes(self) -> bool:
        """Whether the workers are processes of this host that are not this one, and so can be killed and looked for."""
        host, pid = socket.gethostname(), os.getpid()
        return all(worker.host == host and worker.pid != pid for worker in self.workers)

    def start(
        self,
        *,
        payload: bytes | None = None,
        runner_options: Mapping[str, Any] | None = None,
    ) -> StartResult:
        """Start the workers; ``payload`` replaces what the last rank is given, ``runner_options`` are added."""
        incarnations = [f"kit-{self.generation}-{next(self._incarnations)}" for _ in self.world.ranks]
        config = EngineConfig(
            runner=RunnerConfig(use=FAKE_RUNNER, options={**self._runner_options, **(runner_options or {})}),
            worker=WorkerConfig(extensions=self._extensions),
        )
        payloads = [
            encode_start_payload(
                StartPayload(
                    incarnation=incarnation,
                    generation=self.generation,
                    place=place,
                    world=WorldPlan(ranks=(place,), output_rank=0),
                    config=config.model_dump_json(),
                    model=fake_model(VOCAB_SIZE),
                    runner=FAKE_RUNNER,
                    block_size=16,
                    max_model_len=1024,
                    max_num_seqs=16,
                    max_num_batched_tokens=256,
                )
            )
            for place, incarnation in zip(self.world.ranks, incarnations, strict=True)
        ]
        if payload is not None:
            payloads[-1] = payload
        result = self._live().start(
            StartSpec(
                generation=self.generation,
                world=self.world,
                payloads=tuple(payloads),
                incarnations=tuple(incarnations),
                deadline=self.deadline(),
            )
        )
        self.workers = result.workers
        if self.own_processes:
            self.processes.update(worker.pid for worker in self.workers)
        return result

    def ready(self) -> None:
        """Start the workers and take them through every phase, so that steps can be run."""
        self.start()
        for call in START_CALLS:
            self.calls(call)

    def calls(self, call: Call, *, timeout: float | None = None, ranks: tuple[int, ...] | None = None) -> list[object]:
        """Every rank's result, in rank order; raises what one of them reported."""
        results = self._live().collective_rpc(call, timeout=timeout, ranks=ranks)
        assert len(results) == len(self.world.ranks if ranks is None else ranks), "a rank's answer is missing"
        return results

    def call(self, call: Call, *, timeout: float | None = None) -> object:
        """The output rank's result, when all have answered; raises what a rank reported."""
        return self.calls(call, timeout=timeout)[0]

    def next_step(self, how: bytes = b"", *, num_tokens: int = 3) -> tuple[ExecuteModel, int]:
        """A step with one new request (that asks to misbehave, if ``how`` says so), and the token it must draw.

        ``num_tokens`` makes the message large: three bytes each, or less.
        """
        self._step += 1
        token_ids = (self._step % VOCAB_SIZE, *(i % VOCAB_SIZE for i in range(1, num_tokens)))
        new = NewRequest(
            request_id=f"r{self._step}",
            token_ids=token_ids,
            num_prompt_tokens=num_tokens,
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
            num_scheduled_tokens={new.request_id: num_tokens},
        )
        return ExecuteModel(scheduler_output=output), fake_token(token_ids, VOCAB_SIZE)

    def submit(self, call: Call, *, ranks: tuple[int, ...] | None = None) -> Future[Replies]:
        """Send without waiting."""
        return self._live().submit_call(call, deadline=self.deadline(), ranks=ranks).future

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

    def drop(self) -> None:
        """Let go of the executor, and of its probes, which may hold it."""
        self.executor = None
        self.probes.forget()

    def wait_until(self, true: Callable[[], bool], otherwise: str) -> None:
        """Wait for something to become true; ``otherwise`` is what is said when it does not."""
        until = time.monotonic() + self.patience
        while not true():
            assert time.monotonic() < until, otherwise
            time.sleep(0.001)

    def wait_until_closed(self) -> None:
        """Wait until every worker has closed its runner."""
        files = [self.closed.with_name(f"{self.closed.name}-{place.rank}") for place in self.world.ranks]
        self.wait_until(lambda: all(file.exists() for file in files), "a worker has not closed its runner")

    def wait_until_gone(self) -> None:
        """Wait until the processes of all workers that were started have ended and been reaped."""
        self.wait_until(
            lambda: not any(is_there(pid) for pid in self.processes), "a worker's process is there after the stop"
        )

    def _live(self) -> Executor[Any]:
        assert self.executor is not None, "the executor was dropped"
        return self.executor


def is_there(pid: int) -> bool:
    """Whether a process of this number exists, reaped ones excepted."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def token_of(result: object) -> int:
    """The one token of a step's result."""
    assert isinstance(result, StepResult)
    assert result.output is not None
    ((token,),) = result.output.sampled_token_ids
    return token
