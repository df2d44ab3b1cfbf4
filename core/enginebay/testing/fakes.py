"""A runner without a model, whose tokens can be told beforehand: what the kit puts under an executor.

Its tokens are a function of the tokens before them (``fake_token``). A request can ask it to misbehave, through
``extra["kit"]``: ``b"raise"`` fails the step, ``b"exit"`` raises ``SystemExit``, ``b"hold"`` waits until the file that
the option ``gate`` names exists. When it is closed it makes the file that ``closed`` names. Nothing here imports torch.
"""

from __future__ import annotations

import time
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import ModelRunner, Options, RunnerCapabilities, RunnerContext, RunnerPlugin
from enginebay.messages import KVCacheGroup, KVCacheSpec, ModelInfo, ModelRunnerOutput, SchedulerOutput
from enginebay.worker import HostDevice, RequestTable

FAKE_RUNNER: Final = "kit_fake"
"""The name under which the kit offers the runner."""

KIT: Final = "kit"
"""The key of ``extra`` under which a request asks it to misbehave."""

_LONGEST_HOLD = 120.0
_BLOCK_SIZE = 16


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


class FakeRunner(ModelRunner[FakeOptions]):
    """Keeps its state in the ``RequestTable``, as a real runner does, and computes nothing."""

    def __init__(self, context: RunnerContext[FakeOptions]) -> None:
        super().__init__(context)
        self.table = RequestTable()

    def load_model(self) -> None:
        if self.context.options.fail_load:
            raise ValueError(self.context.options.fail_load)

    def kv_cache_spec(self) -> KVCacheSpec:
        group = KVCacheGroup(layers=(0,), block_size=self.context.block_size, bytes_per_block=1024)
        return KVCacheSpec(groups=(group,))

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """There is none."""

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        rows = self.table.begin_step(scheduler_output)
        for new in scheduler_output.new:
            self._misbehave(new.extra.get(KIT, b""))
        vocab_size = self.context.model.vocab_size
        return self.table.finish_step(
            {one.row.request_id: (fake_token(one.row.token_ids, vocab_size),) for one in rows if one.samples}
        )

    def close(self) -> None:
        if self.context.options.closed:
            Path(self.context.options.closed).touch()

    def _misbehave(self, how: bytes) -> None:
        if how == b"raise":
            raise ValueError("the fake runner was asked to fail")
        if how == b"exit":
            raise SystemExit("the fake runner was asked to leave")
        if how == b"hold":
            gate, until = Path(self.context.options.gate), time.monotonic() + _LONGEST_HOLD
            while not gate.exists() and time.monotonic() < until:
                time.sleep(0.001)


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
