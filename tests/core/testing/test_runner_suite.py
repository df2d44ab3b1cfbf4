"""The runners' suite fails broken runners, each by the check that is there for it, and passes the whole one."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from enginebay.interfaces import NoOptions, RunnerCapabilities, RunnerContext
from enginebay.messages import (
    FinishWeightUpdate,
    KVCacheSpec,
    ModelInfo,
    ModelRunnerOutput,
    RankPlace,
    SchedulerOutput,
    StartWeightUpdate,
    WeightsChunk,
    WorldPlan,
)
from enginebay.testing import RunnerSuite, StartedRunner
from enginebay.testing._runner_weights import WeightChecks
from enginebay.worker import HostDevice
from support.repository import ROOT

BLOCK_SIZE = 16
MODEL = ModelInfo(
    path="", name="", architecture="", model_type="", vocab_size=1000, max_model_len=4096, dtype="float32"
)
CONTEXT = RunnerContext(
    options=NoOptions(),
    model=MODEL,
    device=HostDevice(),
    place=RankPlace(),
    world=WorldPlan(),
    dtype="float32",
    cache_dtype="float32",
    block_size=BLOCK_SIZE,
    max_model_len=4096,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
    seed=0,
)
CHECKS = sorted(
    name
    for name, check in inspect.getmembers(RunnerSuite, inspect.isfunction)
    if name.startswith("test_") and "started" in inspect.signature(check).parameters
)


@pytest.fixture
def abacus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example runner's module."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "third_party_runner" / "src"))
    return importlib.import_module("enginebay_abacus.runner")


def run(check: str, runner: Any) -> None:
    runner.initialize_kv_cache(96)
    started = StartedRunner(runner, RunnerCapabilities(features=frozenset({"seed"})), MODEL)
    getattr(RunnerSuite(), check)(started, BLOCK_SIZE)


@pytest.mark.parametrize("check", CHECKS)
def test_the_whole_one_passes(abacus: Any, check: str) -> None:
    run(check, abacus.Abacus(CONTEXT))


class Altered:
    """Stands before a runner and alters what goes in or comes out."""

    def __init__(
        self,
        inner: Any,
        before: Callable[[SchedulerOutput], SchedulerOutput] = lambda output: output,
        after: Callable[[ModelRunnerOutput], ModelRunnerOutput] = lambda output: output,
    ) -> None:
        self.inner, self.before, self.after = inner, before, after

    def kv_cache_spec(self) -> KVCacheSpec:
        return self.inner.kv_cache_spec()

    def initialize_kv_cache(self, num_blocks: int) -> None:
        self.inner.initialize_kv_cache(num_blocks)

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        return self.after(self.inner.execute_model(self.before(output)))


def without(*fields: str) -> Callable[[SchedulerOutput], SchedulerOutput]:
    return lambda output: msgspec.structs.replace(output, **dict.fromkeys(fields, ()))


def draws_in_order(abacus: Any) -> Any:
    """Random draws from one stream, as they come."""
    stream = itertools.count(1)
    abacus.draw_key = lambda seed, choice, position: next(stream)
    return abacus.Abacus(CONTEXT)


def reads_its_last_block_only(abacus: Any) -> Any:
    class Forgetful(abacus.Abacus):  # type: ignore[misc, name-defined]  # the module is loaded when the test runs
        def initialize_kv_cache(self, num_blocks: int) -> None:
            super().initialize_kv_cache(num_blocks)
            read = self._memory.read
            self._memory.read = lambda who, blocks, stop: read(who, blocks, stop)[
                (stop - 1) // BLOCK_SIZE * BLOCK_SIZE :
            ]

    return Forgetful(CONTEXT)


def fills_partial_prefills(output: ModelRunnerOutput) -> ModelRunnerOutput:
    return msgspec.structs.replace(
        output, sampled_token_ids=tuple(tokens or (5,) for tokens in output.sampled_token_ids)
    )


def turns_the_batch_round(output: ModelRunnerOutput) -> ModelRunnerOutput:
    return msgspec.structs.replace(
        output, request_ids=output.request_ids[::-1], sampled_token_ids=output.sampled_token_ids[::-1]
    )


def takes_blocks_for_neighbours(output: SchedulerOutput) -> SchedulerOutput:
    """Reads the first block id of a new request, and counts on from there."""
    new = tuple(
        msgspec.structs.replace(n, block_ids=tuple(tuple(range(g[0], g[0] + len(g))) for g in n.block_ids))
        for n in output.new
    )
    return msgspec.structs.replace(output, new=new)


def computes_hits_again(output: SchedulerOutput) -> SchedulerOutput:
    """Treats a prefix hit as if nothing were computed, and writes into the other request's blocks."""
    counts: Mapping[str, int] = {
        **output.num_scheduled_tokens,
        **{n.request_id: output.num_scheduled_tokens[n.request_id] + n.num_computed_tokens for n in output.new},
    }
    new = tuple(msgspec.structs.replace(n, num_computed_tokens=0) for n in output.new)
    return msgspec.structs.replace(output, new=new, num_scheduled_tokens=dict(counts))


BROKEN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "history forgotten": ("test_answers_depend_on_the_history", reads_its_last_block_only),
    "token for a partial prefill": (
        "test_partial_prefill_returns_no_tokens",
        lambda abacus: Altered(abacus.Abacus(CONTEXT), after=fills_partial_prefills),
    ),
    "batch order turned round": (
        "test_messages_are_left_alone",
        lambda abacus: Altered(abacus.Abacus(CONTEXT), after=turns_the_batch_round),
    ),
    "finished ignored": (
        "test_an_id_can_come_again",
        lambda abacus: Altered(abacus.Abacus(CONTEXT), before=without("finished")),
    ),
    "aborted ignored": (
        "test_abort_leaves_the_others_alone",
        lambda abacus: Altered(abacus.Abacus(CONTEXT), before=without("finished")),
    ),
    "preempted ignored": (
        "test_resume_after_preemption",
        lambda abacus: Altered(abacus.Abacus(CONTEXT), before=without("preempted")),
    ),
    "blocks taken for neighbours": (
        "test_order_of_blocks_is_nothing",
        lambda abacus: Altered(abacus.Abacus(CONTEXT), before=takes_blocks_for_neighbours),
    ),
    "prefix computed again": (
        "test_prefix_hit",
        lambda abacus: Altered(abacus.Abacus(CONTEXT), before=computes_hits_again),
    ),
    "draws in order": ("test_draws_are_keyed", draws_in_order),
}


class Weighing(Altered):
    """The abacus with weights: a sum of their bytes is added to each token that it draws. Whole by these rules."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner, after=self._say)
        self.sum: int | None = None
        self.coming: dict[str, int] = {}
        self.asleep = False
        self.load(MODEL_FOLDER[0])

    def _say(self, output: ModelRunnerOutput) -> ModelRunnerOutput:
        assert self.sum is not None
        assert not self.asleep
        drawn = output.sampled_token_ids
        said = tuple(tuple((token + self.sum) % MODEL.vocab_size for token in tokens) for tokens in drawn)
        return msgspec.structs.replace(output, sampled_token_ids=said)

    def load(self, folder: str) -> None:
        for path in Path(folder).glob("*.safetensors"):
            content = path.read_bytes()
            self.coming[path.name] = sum(content[8 + int.from_bytes(content[:8], "little") :])

    def finish(self) -> None:
        if not self.coming:
            raise ValueError("no weights came")
        self.sum, self.coming = sum(self.coming.values()), {}

    def start_weight_update(self, update: StartWeightUpdate) -> None:
        self.coming = {}
        if update.path:
            self.load(update.path)

    def update_weights_chunk(self, chunk: WeightsChunk) -> None:
        for piece in chunk.pieces:
            self.coming[piece.name] = self.coming.get(piece.name, 0) + sum(piece.data)

    def finish_weight_update(self, finish: FinishWeightUpdate) -> None:
        self.finish()

    def abort_weight_update(self) -> None:
        self.coming = {}

    def sleep(self, level: int) -> None:
        self.asleep = True
        self.sum = None if level > 1 else self.sum

    def wake_up(self, tags: frozenset[str]) -> None:
        self.asleep = self.asleep and "kv_cache" not in tags


class CountsAtOnce(Weighing):
    def update_weights_chunk(self, chunk: WeightsChunk) -> None:
        super().update_weights_chunk(chunk)
        self.sum = sum(self.coming.values())


class KeepsTheAborted(Weighing):
    def start_weight_update(self, update: StartWeightUpdate) -> None:
        if update.path:
            self.load(update.path)

    def abort_weight_update(self) -> None: ...


class IgnoresTheFinish(Weighing):
    def finish_weight_update(self, finish: FinishWeightUpdate) -> None: ...


class FinishesWithNothing(Weighing):
    def finish_weight_update(self, finish: FinishWeightUpdate) -> None:
        self.sum, self.coming = sum(self.coming.values()), {}


class WakesOnlyWhole(Weighing):
    def wake_up(self, tags: frozenset[str]) -> None:
        self.asleep = self.asleep and len(tags) < 2


class ForgetsItsWeights(Weighing):
    def sleep(self, level: int) -> None:
        super().sleep(level)
        self.sum = 0


MODEL_FOLDER: list[str] = []
WEIGHT_CHECKS = sorted(name for name in vars(WeightChecks) if name.startswith("test_"))
BROKEN_LIVES = {
    "chunks count at once": ("test_weights_three_calls", CountsAtOnce),
    "the finish is ignored": ("test_weights_three_calls", IgnoresTheFinish),
    "the aborted are kept": ("test_weights_aborted_midway", KeepsTheAborted),
    "finished with nothing": ("test_weights_that_lack_some", FinishesWithNothing),
    "wakes up only as a whole": ("test_sleep", WakesOnlyWhole),
    "forgets its weights in its sleep": ("test_sleep", ForgetsItsWeights),
}


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[None]:
    """A model folder of two tensors."""
    save_file(
        {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(3, np.float32)}, tmp_path / "m.safetensors"
    )
    MODEL_FOLDER[:] = [str(tmp_path)]
    yield
    MODEL_FOLDER.clear()


def live(check: str, kind: type[Weighing], abacus: Any) -> None:
    runner: Any = kind(abacus.Abacus(CONTEXT))
    runner.initialize_kv_cache(96)
    Weighing.finish(runner)
    able = RunnerCapabilities(features=frozenset({"seed"}), sleep=True, update_weights=True)
    model = msgspec.structs.replace(MODEL, path=MODEL_FOLDER[0])
    getattr(RunnerSuite(), check)(StartedRunner(runner, able, model), BLOCK_SIZE)


@pytest.mark.parametrize("check", WEIGHT_CHECKS)
def test_a_whole_life_passes(abacus: Any, weights: None, check: str) -> None:
    live(check, Weighing, abacus)


@pytest.mark.parametrize("what", sorted(BROKEN_LIVES))
def test_a_broken_life_is_caught(abacus: Any, weights: None, what: str) -> None:
    check, kind = BROKEN_LIVES[what]
    with pytest.raises(AssertionError):
        live(check, kind, abacus)


@pytest.mark.parametrize("what", sorted(BROKEN))
def test_a_broken_one_is_caught(abacus: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check, make = BROKEN[what]
    monkeypatch.setattr(abacus, "draw_key", abacus.draw_key)  # put back what a broken one replaces
    with pytest.raises((AssertionError, ValueError)):
        run(check, make(abacus))


def test_a_suite_without_a_model_says_what_to_do(request: pytest.FixtureRequest) -> None:
    class Mine(RunnerSuite):
        name = "mine"

    fixture: Any = inspect.unwrap(Mine.model_folder)
    body = getattr(fixture, "_get_wrapped_function", lambda: fixture)()
    message = "Mine needs a model: override its fixture model_folder, or give --model FOLDER"
    with pytest.raises(pytest.UsageError, match=f"^{message}$"):
        body(Mine(), request)
