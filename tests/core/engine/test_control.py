"""Whole engines with the fake runner that sleep, wake, drain, and are given other weights. E7."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginebay import LLM, AsyncLLM, SamplingParams
from enginebay.engine.client import InProcessClient
from enginebay.engine.control.tensors import AbortTensors, FinishTensors, StartTensors, new_update
from enginebay.engine.control.weights import WeightsControl
from enginebay.engine.control.words import tensor_commands
from enginebay.engine.core import EngineCore
from enginebay.errors import (
    CapabilityError,
    EngineAsleep,
    EnginebayError,
    EngineBusy,
    EngineDead,
    InvalidRequest,
    WorkerFailed,
    WorkerLost,
)
from enginebay.interfaces import RunnerCapabilities
from enginebay.messages import (
    AbortWeightUpdate,
    ControlDone,
    ReadStatus,
    Sleep,
    StartWeightUpdate,
    StopEngine,
    UpdateWeights,
)
from support.fake_engine import FakeEngine, FakeRunner
from support.fake_engines import Installed
from support.fake_life import FAILING, write_weights

FEW = SamplingParams(max_tokens=9)
TENSOR = ("weight", np.full(4, 1, np.float32))


@pytest.fixture(autouse=True)
def nothing_fails() -> Iterator[None]:
    FAILING.clear()
    yield
    FAILING.clear()


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> list[FakeRunner]:
    """The runners that are made, in order."""
    made: list[FakeRunner] = []
    original = FakeRunner.__init__

    def init(self: FakeRunner, context: Any) -> None:
        made.append(self)
        original(self, context)

    monkeypatch.setattr(FakeRunner, "__init__", init)
    return made


@pytest.fixture
def llm(fake: Installed, runners: list[FakeRunner]) -> Iterator[LLM]:
    with LLM(fake.config()) as llm:
        yield llm


@pytest.fixture
def loud(tmp_path: Path) -> Path:
    """Other weights, which shout."""
    return write_weights(tmp_path / "loud", 1)


def client_of(llm: LLM) -> InProcessClient:
    return llm._front.client._clients[0]  # type: ignore[attr-defined]  # a set of one


def core_of(llm: LLM) -> EngineCore:
    return client_of(llm)._core


def answer(llm: LLM) -> str:
    return llm.generate("hi", FEW)[0].text


def eventually(llm: LLM, **facts: str) -> None:
    until = time.monotonic() + 20
    while not facts.items() <= llm.status().items():
        assert time.monotonic() < until, llm.status()
        time.sleep(0.005)


class Held:
    """A request that runs until it is aborted."""

    def __init__(self, llm: LLM) -> None:
        self._stream = llm.stream("hi", SamplingParams(max_tokens=400))
        next(self._stream)

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self._stream.close()


@pytest.mark.parametrize("level", [1, 2])
def test_what_slept_answers_as_before(llm: LLM, runners: list[FakeRunner], level: int) -> None:  # E7
    before = answer(llm)
    llm.sleep(level)
    assert llm.status()["state"] == f"asleep (level {level}; kv_cache, weights)"
    with pytest.raises(EngineAsleep) as caught:
        answer(llm)
    assert str(caught.value) == (
        f"the engine sleeps (level {level}, without kv_cache and weights): wake it up, and ask again"
    )
    assert caught.value.status == 503
    llm.wake_up()
    assert llm.status()["state"] == "ready"
    assert answer(llm) == before
    brought = ["wake_up kv_cache weights"] if level == 1 else [
        "start_weight_update", "finish_weight_update", "wake_up kv_cache"
    ]  # fmt: skip
    assert runners[0].asked == [f"sleep {level}", *brought]


def test_waking_in_two_parts(llm: LLM) -> None:  # E7
    llm.sleep(2)
    llm.wake_up(["weights"])
    with pytest.raises(EngineAsleep, match="without kv_cache"):
        answer(llm)
    llm.wake_up(["weights"])  # again: nothing to do
    llm.wake_up(["kv_cache"])
    llm.wake_up()
    assert answer(llm) == "the quick"


def test_sleep_is_refused_while_requests_run(fake: Installed) -> None:  # E7
    with LLM(fake.config(step_seconds=0.002)) as llm:
        with Held(llm):
            for refused in (llm.sleep, lambda: llm.update_weights(tensors=[TENSOR]), lambda: llm.update_weights("x")):
                with pytest.raises(EngineBusy) as caught:
                    refused()
                what = "sleep" if refused == llm.sleep else "update_weights"
                assert str(caught.value) == (
                    f"{what} is not safe while requests run, and 1 is unfinished: drain first, or abort them"
                )
            assert llm.status()["state"] == "ready"
        llm.drain()
        llm.sleep()  # and not a moment too early: the runner was told of the end before


def test_nothing_is_slept_over(llm: LLM) -> None:  # E7
    """The runner hears of the last request's end before it sleeps, though nothing else would make a step."""
    for _ in range(5):
        answer(llm)
        llm.sleep()
        llm.wake_up()
        assert len(core_of(llm)._requests) == 0
    assert answer(llm) == "the quick"


def test_what_cannot_be_asked(llm: LLM, loud: Path) -> None:
    for level in (0, 3):
        with pytest.raises(InvalidRequest, match=f"^level is 1 or 2, not {level}$"):
            llm.sleep(level)
    with pytest.raises(InvalidRequest, match=r"^tags are of weights, kv_cache, and not 'x'$"):
        llm.wake_up(["x"])
    llm.sleep()
    with pytest.raises(EngineBusy, match=r"^the engine sleeps already \(level 1\): wake it up first$"):
        llm.sleep(2)
    with pytest.raises(EngineAsleep, match='keeps its weights aside: wake_up with the tag "weights" first'):
        llm.update_weights(loud)
    for nothing_or_both in ({}, {"path": loud, "tensors": []}, {"tensors": [], "per_rank": {}}):
        with pytest.raises(InvalidRequest, match=r"^give one of path, tensors and per_rank"):
            llm.update_weights(**nothing_or_both)


def test_a_runner_that_cannot_is_not_asked(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:  # P8
    with LLM(fake.config()) as llm:
        core = core_of(llm)
        parts = core._controls._parts
        object.__setattr__(parts, "runner_capabilities", RunnerCapabilities())
        with pytest.raises(CapabilityError, match=r"^runner 'fake' 1.0 does not sleep: choose a runner that does$"):
            llm.sleep()
        with pytest.raises(CapabilityError, match=r"^runner 'fake' 1.0 does not take other weights: choose"):
            llm.update_weights(tensors=[TENSOR])
        assert answer(llm) == "the quick"


def test_a_sleep_that_fails_is_undone(llm: LLM, runners: list[FakeRunner]) -> None:
    FAILING["sleep"] = "cannot sleep"
    with pytest.raises(WorkerFailed, match="failed in sleep_worker: ValueError: cannot sleep"):
        llm.sleep()
    assert llm.status()["state"] == "ready"
    assert answer(llm) == "the quick"


def test_a_wake_up_that_fails_can_be_asked_again(llm: LLM) -> None:
    llm.sleep()
    FAILING["wake_up"] = "no memory"
    with pytest.raises(WorkerFailed, match="no memory"):
        llm.wake_up()
    assert llm.status()["state"] == "asleep (level 1; kv_cache, weights)"
    FAILING.clear()
    llm.wake_up()
    assert answer(llm) == "the quick"


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


@pytest.mark.parametrize(
    "ask",
    [
        lambda llm: llm.drain("soon"),
        lambda llm: llm.sleep(2**70),
        lambda llm: llm.sleep("deep"),
        lambda llm: llm.wake_up([7]),
        lambda llm: llm.collective_rpc("\ud800"),
        lambda llm: llm.collective_rpc("a.b", timeout="long"),
        lambda llm: llm.update_weights("/tmp/\udcff"),
        lambda llm: llm.update_weights("/tmp", version=7),
        lambda llm: llm.start_profile("/tmp/\udcff"),
    ],
)
def test_what_cannot_be_said_is_refused_and_harms_nobody(llm: LLM, ask: Callable[[LLM], object]) -> None:
    with pytest.raises(InvalidRequest, match="cannot be asked so: "):
        ask(llm)
    assert answer(llm) == "the quick"


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
    _kill(core_of(llm))
    assert answer(llm) == "THE QUICK"
    assert len(runners) == 2


def test_a_worker_that_dies_in_its_sleep_is_woken_anew(llm: LLM, runners: list[FakeRunner]) -> None:
    llm.sleep(2)
    _kill(core_of(llm))
    llm.wake_up()
    assert answer(llm) == "the quick"
    assert len(runners) == 2


def test_weights_that_nobody_kept_are_the_end(llm: LLM) -> None:
    llm.update_weights(tensors=[TENSOR], version="t")
    _kill(core_of(llm))
    with pytest.raises(WorkerLost) as caught:
        answer(llm)
    assert str(caught.value).endswith(
        "the workers could not be started again: the weights in force (version 't') were given as tensors, and the "
        "workers that had them are gone"
    )


def test_a_drain_lets_the_running_end(fake: Installed) -> None:  # E7
    with LLM(fake.config(step_seconds=0.002)) as llm:
        stream = llm.stream("hi", SamplingParams(max_tokens=60))
        next(stream)
        left: list[int] = []
        drain = threading.Thread(target=lambda: left.append(llm.drain()))
        drain.start()
        eventually(llm, state="draining")
        with pytest.raises(EngineBusy, match=r"^the engine drains, and takes no new requests: ask again when"):
            answer(llm)
        assert sum(len(output.token_ids) for output in stream) == 60 - 1
        drain.join(20)
        assert left == [0]
        llm.resume()
        assert answer(llm) == "the quick"


def test_a_drain_ends_at_its_time(fake: Installed) -> None:
    with LLM(fake.config(step_seconds=0.002)) as llm, Held(llm):
        assert llm.drain(timeout=0.05) == 1
        assert llm.drain(timeout=0) == 1
        llm.resume()


def test_a_status_waits_for_nobody(fake: Installed) -> None:
    with LLM(fake.config(step_seconds=0.3)) as llm:
        answering = threading.Thread(target=lambda: llm.generate("hi", SamplingParams(max_tokens=2)))
        answering.start()
        eventually(llm, unfinished="1")
        assert client_of(llm).control(ReadStatus()).done()
        answering.join(20)
        assert llm.status()["finished"] == "1"


def test_stop_as_a_command(fake: Installed) -> None:
    with LLM(fake.config()) as llm:
        assert client_of(llm).control(StopEngine()).result(20) == ControlDone()
        client_of(llm)._loop.join(20)
        with pytest.raises(EngineDead, match=r"^the engine is closed; make a new one$"):
            answer(llm)


def test_what_waits_at_the_end_is_told(fake: Installed) -> None:
    with LLM(fake.config(step_seconds=0.002)) as llm, Held(llm):
        drain = client_of(llm)._core.drain_timeout
        assert drain > 1
        errors: list[Exception] = []

        def ask() -> None:
            try:
                llm.drain()
            except EngineDead as error:
                errors.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        eventually(llm, state="draining")
        llm.close()
        asking.join(20)
        assert [str(error) for error in errors] == ["the engine is closed; make a new one"]


def test_a_command_whose_asker_has_gone(llm: LLM) -> None:
    """One that was cancelled before its turn is passed over; one that runs is not taken back."""
    client = client_of(llm)
    many = [client.control(Sleep()) for _ in range(3)]
    for one in many[1:]:
        one.cancel()
    many[0].result(20)
    llm.wake_up()
    assert answer(llm) == "the quick"


def test_the_same_awaited(fake: Installed, loud: Path, tmp_path: Path) -> None:  # E7
    async def main() -> None:
        async with AsyncLLM(fake.config()) as llm:

            async def text() -> str:
                return "".join([output.text async for output in llm.generate("hi", FEW)])

            assert await text() == "the quick"
            await llm.sleep(2)
            with pytest.raises(EngineAsleep):
                await text()
            await llm.wake_up()
            await llm.update_weights(loud)
            assert await text() == "THE QUICK"
            await llm.update_weights(tensors=[("weight", np.zeros(4, np.float32))], version="z")
            assert await text() == "the quick"
            assert (await llm.status())["weights"] == "z"
            assert await llm.drain() == 0
            with pytest.raises(EngineBusy):
                await text()
            await llm.resume()
            await llm.start_profile(tmp_path / "profiles")
            assert await text() == "the quick"
            assert await llm.stop_profile() == [tmp_path / "profiles" / "rank0.pstats"]

    asyncio.run(main())


def test_a_profile_is_written(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="no profile is being recorded: start one first"):
        llm.stop_profile()
    llm.start_profile(tmp_path / "profiles")
    with pytest.raises(WorkerFailed, match="a profile is being recorded already: stop it first"):
        llm.start_profile(tmp_path / "profiles")
    answer(llm)
    [path] = llm.stop_profile()
    assert b"execute_model" in path.read_bytes()
    llm.start_profile(tmp_path / "profiles")  # and is dropped with the engine


def _kill(core: EngineCore) -> None:
    """Break the line to the worker: its loop ends with an error, and its thread with it; wait until that is known."""
    executor: Any = core._parts.executor
    generation = core._parts.generation.current
    executor._session._ours.send(b"not an envelope")
    until = time.monotonic() + 20
    while not core._parts.watch._exits and core._parts.generation.current == generation:  # or known and mended
        assert time.monotonic() < until
        time.sleep(0.002)


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
