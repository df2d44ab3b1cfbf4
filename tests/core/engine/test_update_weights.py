"""Whole engines with the fake runner that are given other weights: all of them, or the old ones stay. E7."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginebay import LLM, AsyncLLM, SamplingParams
from enginebay.engine.control.tensors import AbortTensors, FinishTensors, StartTensors, new_update
from enginebay.engine.control.weights import WeightsControl
from enginebay.engine.control.words import tensor_commands
from enginebay.errors import EngineAsleep, EnginebayError, EngineBusy, WorkerFailed, WorkerLost
from enginebay.interfaces import RunnerCapabilities
from enginebay.messages import AbortWeightUpdate, StartWeightUpdate, UpdateWeights
from support.fake_engine import FakeEngine, FakeRunner
from support.fake_engines import Installed
from support.fake_life import FAILING
from support.llms import FEW, TENSOR, answer, break_line, client_of, core_of

pytestmark = pytest.mark.usefixtures("nothing_fails")


def test_weights_of_a_folder(llm: LLM, loud: Path) -> None:  # E7
    assert answer(llm) == "the quick"
    llm.update_weights(loud, version="v2")
    assert llm.status()["weights"] == "v2"
    assert answer(llm) == "THE QUICK"
    llm.sleep(2)
    llm.wake_up()
    assert answer(llm) == "THE QUICK"


def test_weights_as_tensors(llm: LLM) -> None:  # E7
    llm.update_weights(tensors=[TENSOR], version="t")
    assert answer(llm) == "THE QUICK"
    llm.sleep(2)
    with pytest.raises(EngineAsleep) as caught:
        llm.wake_up()
    assert str(caught.value) == (
        "the weights that were in force (version 't') were given as tensors, and sleep dropped them: give them again "
        "by update_weights, which wakes them up as well"
    )
    llm.update_weights(per_rank={0: [("weight", np.zeros(4, np.float32))]})
    assert llm.status()["state"] == "asleep (level 2; kv_cache)"
    llm.wake_up()
    assert answer(llm) == "the quick"


@pytest.mark.parametrize("method", ["start_weight_update", "update_weights_chunk", "finish_weight_update"])
def test_an_update_that_fails_leaves_the_old_weights(llm: LLM, runners: list[FakeRunner], method: str) -> None:  # E7
    FAILING[method] = "bad weights"
    with pytest.raises(WorkerFailed, match=f"failed in {method.replace('update_weights', 'weights')}.*bad weights"):
        llm.update_weights(tensors=[TENSOR])
    assert runners[0].asked[-1] == "abort_weight_update"
    assert llm.status()["state"] == "ready"
    assert answer(llm) == "the quick"


def test_tensors_that_stop_coming(llm: LLM, runners: list[FakeRunner]) -> None:
    def broken() -> Iterator[tuple[str, Any]]:
        yield TENSOR
        with pytest.raises(EngineBusy, match="is being given other weights: ask again in a while"):
            answer(llm)
        with pytest.raises(EngineBusy, match="sleep has to wait: the engine is being given other weights"):
            llm.sleep()
        raise RuntimeError("the trainer died")

    with pytest.raises(RuntimeError, match="the trainer died"):
        llm.update_weights(tensors=broken())
    assert answer(llm) == "the quick"
    assert runners[0].asked[-1] == "abort_weight_update"


def test_a_start_that_only_some_groups_take_is_taken_back(fake: Installed) -> None:
    config = fake.config(step_seconds=0.002) | {"parallel": {"data_parallel_size": 2}}
    with LLM(config) as llm:
        held = [llm.stream("hi", SamplingParams(max_tokens=400)) for _ in range(2)]
        assert llm._front.client.loads.count(0) == 0  # type: ignore[attr-defined]  # a set
        next(held[0])
        held[0].close()
        until = time.monotonic() + 20
        while client_of(llm).stats().unfinished:
            assert time.monotonic() < until
        with pytest.raises(EngineBusy, match=r"^group 1 did not start_tensors, which group 0 did already: "):
            llm.update_weights(tensors=[TENSOR])
        assert llm.status()["state"] == "ready"
        held[1].close()
        llm.drain()
        llm.resume()
        llm.update_weights(tensors=[TENSOR])
        assert {answer(llm) for _ in range(4)} == {"THE QUICK"}


def test_the_end_of_one_update_does_nothing_to_the_next(llm: LLM) -> None:
    one, two = new_update(), new_update()
    llm._ask(StartTensors(update=two))
    llm._ask(AbortTensors(update=one))
    chunk = next(iter(tensor_commands(two, [TENSOR], None)))
    for late in (next(iter(tensor_commands(one, [TENSOR], None))), FinishTensors(update=one)):
        with pytest.raises(EngineBusy, match="this update of the weights was given up: give them all again"):
            llm._ask(late)
    llm._ask(chunk)
    llm._ask(FinishTensors(update=two))
    assert answer(llm) == "THE QUICK"


def test_a_cancelled_update_leaves_no_engine_that_waits(fake: Installed) -> None:  # X9
    async def run() -> str:
        async with AsyncLLM(fake.config()) as llm:
            for turns in range(6):  # wherever it is by then
                task = asyncio.ensure_future(llm.update_weights(tensors=[TENSOR] * 3))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            return (await llm.status())["state"]

    assert asyncio.run(run()) == "ready"


def test_nothing_cached_of_other_weights_is_used(fake: Installed, loud: Path) -> None:  # E7
    prompt = "a long prompt whose blocks stay in the cache, since it is longer than one of them: " * 2
    with LLM(fake.config()) as llm:
        for _ in range(2):
            cached = llm.generate(prompt, FEW)[0].usage.cached_tokens
        assert cached > 0
        for change in (lambda: llm.update_weights(loud), lambda: (llm.sleep(), llm.wake_up())):
            change()
            assert llm.generate(prompt, FEW)[0].usage.cached_tokens == 0


def test_a_worker_reborn_has_the_weights_in_force(llm: LLM, loud: Path, runners: list[FakeRunner]) -> None:  # E7
    llm.update_weights(loud)
    break_line(core_of(llm))
    assert answer(llm) == "THE QUICK"
    assert len(runners) == 2


def test_weights_that_nobody_kept_are_the_end(llm: LLM) -> None:
    llm.update_weights(tensors=[TENSOR], version="t")
    break_line(core_of(llm))
    with pytest.raises(WorkerLost) as caught:
        answer(llm)
    assert str(caught.value).endswith(
        "the workers could not be started again: the weights in force (version 't') were given as tensors, and the "
        "workers that had them are gone"
    )


class Ranks:
    """Two ranks as ``WorkerCalls`` shows them; ``failing`` ranks keep their old weights at the end of an update."""

    def __init__(self) -> None:
        self.failing: set[int] = set()
        self.updating: set[int] = set()
        self.have = ["old", "old"]

    def ask(self, call: Any, expected: object, *, timeout: float | None = None) -> None:
        if isinstance(call, StartWeightUpdate):
            if self.updating:
                raise WorkerFailed("start_weight_update came in the middle of another one: abort that one first")
            self.updating = {0, 1}

    def try_all(self, call: Any, *, timeout: float | None = None) -> list[EnginebayError | None]:
        if isinstance(call, AbortWeightUpdate):
            self.updating.clear()
            return [None, None]
        failures: list[EnginebayError | None] = [None, None]
        for rank in (0, 1):
            if rank in self.failing:
                failures[rank] = WorkerFailed(f"rank {rank} has no memory")
            else:
                self.have[rank] = call.version
                self.updating.discard(rank)
        return failures


@pytest.mark.parametrize("failing", [{0}, {1}, {0, 1}])
def test_ranks_that_have_different_weights_serve_nobody_until_others_come(failing: set[int]) -> None:  # E7
    ranks, parts = Ranks(), FakeEngine().parts
    parts = dataclasses.replace(parts, runner_capabilities=RunnerCapabilities(update_weights=True))
    weights = WeightsControl(parts, ranks, lambda: None)  # type: ignore[arg-type]  # shows what it needs
    ranks.failing = failing
    with pytest.raises(WorkerFailed, match=f"^rank {min(failing)} has no memory") as caught:
        weights.from_path(UpdateWeights(path="/new", version="new"))
    refusal = parts.life.refusal()
    if len(failing) == 1:
        assert str(refusal) == (
            f"the engine has no weights: an update ended on some ranks, and failed on rank {min(failing)}; update the "
            "weights, and ask again"
        )
    else:
        assert refusal is None
        assert caught.value.__notes__ == ["rank 1 has no memory"]
    ranks.failing = set()
    weights.from_path(UpdateWeights(path="/newer", version="newer"))  # the next one is taken, the first time
    assert ranks.have == ["newer", "newer"]
    assert parts.life.refusal() is None
