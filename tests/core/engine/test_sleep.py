"""Whole engines with the fake runner that sleep and wake: they answer as before, or say why not. E7."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay import LLM
from enginebay.errors import CapabilityError, EngineAsleep, EngineBusy, InvalidRequest, WorkerFailed
from enginebay.interfaces import RunnerCapabilities
from support.fake_engine import FakeRunner
from support.fake_engines import Installed
from support.fake_life import FAILING
from support.llms import TENSOR, Held, answer, break_line, core_of

pytestmark = pytest.mark.usefixtures("nothing_fails")


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


def test_a_worker_that_dies_in_its_sleep_is_woken_anew(llm: LLM, runners: list[FakeRunner]) -> None:
    llm.sleep(2)
    break_line(core_of(llm))
    llm.wake_up()
    assert answer(llm) == "the quick"
    assert len(runners) == 2
