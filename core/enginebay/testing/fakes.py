"""A runner without a model, whose tokens can be told beforehand: what the kit puts under an executor.

Its tokens are a function of the tokens before them (``fake_token``). A request can ask it to misbehave, through
``extra["kit"]``: ``b"raise"`` fails the step, ``b"exit"`` raises ``SystemExit``, ``b"say"`` writes a line to stderr,
``b"hold"`` waits until the file that the option ``gate`` names exists; ``b"raise@1"`` is for rank 1 alone. It fails
steps that come out of their order. When it is closed it makes the file that ``closed`` names, with ``-RANK`` behind.
The worker extension ``kit_extension`` says where it is. Nothing here imports torch.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import (
    ModelRunner,
    NoOptions,
    Options,
    RunnerCapabilities,
    RunnerContext,
    RunnerPlugin,
    WorkerExtensionContext,
    WorkerExtensionPlugin,
)
from enginebay.messages import KVCacheGroup, KVCacheSpec, ModelInfo, ModelRunnerOutput, SchedulerOutput
from enginebay.worker import HostDevice, RequestTable

FAKE_RUNNER: Final = "kit_fake"
"""The name under which the kit offers the runner."""

KIT_EXTENSION: Final = "kit_extension"
"""The name under which the kit offers the worker extension."""

SAID: Final = "the fake runner was asked to say this"
"""The line that ``b"say"`` writes."""

KIT: Final = "kit"
"""The key of ``extra`` under which a request asks it to misbehave."""

_LONGEST_HOLD = 120.0


def fake_token(token_ids: Sequence[int], vocab_size: int) -> int:
    """The token that comes after these."""
    return zlib.crc32(array("q", token_ids).tobytes()) % vocab_size


def fake_model(vocab_size: int = 1000, max_model_len: int = 4096) -> ModelInfo:
    """A model that exists on paper only."""
    return ModelInfo(
        path="",
        name="kit-fake",
        architecture="FakeForCausalLM",
        model_type="fake",
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        dtype="float32",
    )


class FakeOptions(Options):
    """Where the fake looks and writes, so that a test in another process can steer and watch it."""

    gate: Annotated[str, Field(description="File that a held step waits for.")] = ""
    closed: Annotated[str, Field(description="File that is made when the runner is closed.")] = ""
    fail_load: Annotated[str, Field(description="Message with which load_model fails; empty: it succeeds.")] = ""
    fail_rank: Annotated[int, Field(ge=-1, description="The rank on which load_model fails; -1: on all.")] = -1


class FakeRunner(ModelRunner[FakeOptions]):
    """Keeps its state in the ``RequestTable``, as a real runner does, and computes nothing."""

    def __init__(self, context: RunnerContext[FakeOptions]) -> None:
        super().__init__(context)
        self.table = RequestTable()
        self._last = -1, -1

    def load_model(self) -> None:
        if self.context.options.fail_load and self.context.options.fail_rank in (-1, self.context.place.rank):
            raise ValueError(self.context.options.fail_load)

    def kv_cache_spec(self) -> KVCacheSpec:
        group = KVCacheGroup(layers=(0,), block_size=self.context.block_size, bytes_per_block=1024)
        return KVCacheSpec(groups=(group,))

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """There is none."""

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        turn = scheduler_output.generation, scheduler_output.step
        if turn <= self._last:
            raise AssertionError(f"step {turn[1]} came after step {self._last[1]}: calls are not in their order")
        self._last = turn
        rows = self.table.begin_step(scheduler_output)
        for new in scheduler_output.new:
            self._misbehave(new.extra.get(KIT, b""))
        vocab_size = self.context.model.vocab_size
        return self.table.finish_step(
            {one.row.request_id: (fake_token(one.row.token_ids, vocab_size),) for one in rows if one.samples}
        )

    def close(self) -> None:
        if self.context.options.closed:
            Path(f"{self.context.options.closed}-{self.context.place.rank}").touch()

    def _misbehave(self, asked: bytes) -> None:
        how, _, rank = asked.partition(b"@")
        if rank and int(rank) != self.context.place.rank:
            return
        if how == b"say":
            print(SAID, file=sys.stderr, flush=True)  # noqa: T201  # as a library in a worker does
        if how == b"raise":
            raise ValueError("the fake runner was asked to fail")
        if how == b"exit":
            raise SystemExit("the fake runner was asked to leave")
        if how == b"hold":
            gate, until = Path(self.context.options.gate), time.monotonic() + _LONGEST_HOLD
            while not gate.exists() and time.monotonic() < until:
                time.sleep(0.001)


class FakeExtension:
    """Says which rank it is in which process, and what it was sent."""

    def __init__(self, context: WorkerExtensionContext[NoOptions]) -> None:
        self.context = context

    def where(self, payload: bytes) -> bytes:
        """``rank pid payload``."""
        return b"%d %d %s" % (self.context.place.rank, os.getpid(), payload)


@hookimpl
def enginebay_register_worker_extensions() -> list[WorkerExtensionPlugin[NoOptions]]:
    """The fake extension."""
    return [
        WorkerExtensionPlugin(
            name=KIT_EXTENSION,
            summary="Says where it is, for tests of executors.",
            options=NoOptions,
            factory=FakeExtension,
            methods=("where",),
        )
    ]


@hookimpl
def enginebay_register_runners() -> list[RunnerPlugin[FakeOptions]]:
    """The fake runner."""
    return [
        RunnerPlugin(
            name=FAKE_RUNNER,
            summary="A runner without a model, for tests of executors.",
            options=FakeOptions,
            factory=FakeRunner,
            capabilities=RunnerCapabilities(devices=("cpu",)),
            preference=-1000,
            device=lambda kind: HostDevice(),
            supports=lambda model: None if model.model_type == "fake" else "it only pretends to run a model",
        )
    ]
