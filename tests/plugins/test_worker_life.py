"""Real models that sleep, wake, change their weights and grow, on each runner: the tokens of a fresh engine. E7."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay import LLM
from enginebay.errors import EngineAsleep, ModelError, WorkerFailed
from enginebay.messages import Sleep, UpdateWeights, WakeUp, WeightsSent
from enginebay.worker import peer
from support.other_weights import tensors_of
from support.worker_life import Starter, answers, config, fresh, groups, planned, tokens

Tiny = Callable[[str], Path]

TWO_RANKS = ("executor.use=mp", "parallel.tensor_parallel_size=2")
MODES: dict[str, tuple[str, str, tuple[str, ...], dict[str, Any]]] = {
    "v1 llama": ("v1", "llama", (), {}),  # the file's dtype is kept: weights are mapped
    "v1 llama in half": ("v1", "llama", ("model.dtype=bfloat16",), {}),  # they are converted
    "v1 llama whatever the batch": (
        "v1",
        "llama",
        (),
        {"batch_invariant": True},
    ),  # modules hold them in their way
    "v1 tied": ("v1", "gemma2", (), {}),
    "v1 experts": ("v1", "mixtral", (), {}),  # merged by the loader
    "v2 llama": ("v2", "llama", (), {}),
    "v2 llama in half": ("v2", "llama", ("model.dtype=bfloat16",), {}),
    "v2 tied": ("v2", "gemma2", (), {}),
}
SLOW = ("v1 llama whatever the batch", "v2 tied")
"""Rules are found anew for each set of weights; capturing takes long."""


@pytest.mark.parametrize("mode", [pytest.param(one, marks=pytest.mark.soak) if one in SLOW else one for one in MODES])
def test_all_of_a_life(tiny: Tiny, other: Tiny, mode: str) -> None:  # E7
    runner, family, sets, engine = MODES[mode]
    one, two = tiny(family), other(family)
    with LLM(config(runner, one, **engine), sets=sets) as llm:
        first = answers(llm)
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up()
            assert answers(llm) == first, f"after a sleep of level {level}"
        llm.update_weights(two)
        second = answers(llm)
        llm.sleep(2)
        llm.wake_up()
        assert answers(llm) == second, "the weights in force are those that come back"
        llm.update_weights(tensors=tensors_of(one).items())
        assert answers(llm) == first, "given as tensors"
        llm.sleep(2)
        with pytest.raises(EngineAsleep):
            llm.wake_up()
        llm.update_weights(tensors=tensors_of(two).items())
        llm.wake_up()
        assert answers(llm) == second
    assert second == fresh(runner, two, *sets, **engine)
    assert first != second, "a test that cannot fail"


@pytest.fixture(params=["v1", "v2"])
def runner(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start() -> Iterator[Starter]:
    with groups() as starter:
        yield starter


def test_weights_that_do_not_fit_change_nothing(tiny: Tiny, runner: str, tmp_path: Path) -> None:  # E7
    good = tensors_of(tiny("llama"))
    name = next(name for name in good if name.endswith("q_proj.weight"))
    with LLM(config(runner, tiny("llama"))) as llm:
        before = answers(llm)
        for tensors in ({k: v for k, v in good.items() if k != name}, {**good, name: good[name].t().contiguous()[:8]}):
            with pytest.raises(ModelError):
                llm.update_weights(tensors=tensors.items())
            assert answers(llm) == before
        for folder in (tmp_path, tmp_path / "nowhere", tiny("gemma2")):
            with pytest.raises(ModelError):
                llm.update_weights(folder)
            assert answers(llm) == before


def test_a_folder_with_nothing_but_the_weights(tiny: Tiny, other: Tiny, runner: str, tmp_path: Path) -> None:
    """The model stays what it is: the config of the folder is not asked."""
    for path in other("llama").glob("*.safetensors"):
        shutil.copy(path, tmp_path)
    with LLM(config(runner, tiny("llama"))) as llm:
        llm.update_weights(tmp_path)
        assert answers(llm) == fresh(runner, other("llama"))


@pytest.mark.parametrize(
    ("runner", "sets"),
    [("v1", ()), ("v2", ()), ("v2", TWO_RANKS), pytest.param("v1", TWO_RANKS, marks=pytest.mark.soak)],
)
def test_what_grows_reads_no_file_and_has_the_weights_in_force(
    tiny: Tiny, other: Tiny, start: Starter, runner: str, sets: tuple[str, ...], tmp_path: Path
) -> None:  # E7
    """With two ranks each takes its part of a running group's."""
    model = shutil.copytree(tiny("llama"), tmp_path / "model")
    made = planned(runner, model, *sets)
    first = start(made)
    before = tokens(first)
    if sets:
        first.control(Sleep(level=2))
        first.control(WakeUp())
        assert tokens(first) == before
    for path in model.glob("*.safetensors"):
        path.unlink()  # nobody can read it any more
    assert tokens(start(made, lender=first.lender)) == before
    first.control(UpdateWeights(path=str(other("llama")), version="2"))
    second = start(made, lender=first.lender)
    assert tokens(second) == tokens(first) == fresh(runner, other("llama"))
    assert second.status().facts["weights"] == "2"


def test_who_sleeps_lends_nothing(tiny: Tiny, start: Starter, runner: str) -> None:
    made = planned(runner, tiny("llama"))
    first = start(made)
    first.control(Sleep(level=2))
    with pytest.raises(EngineAsleep):
        start(made, lender=first.lender)


def test_a_lender_that_cannot_send_fails_the_start(
    tiny: Tiny, start: Starter, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> WeightsSent:
        raise ValueError("asked to fail")

    monkeypatch.setattr(peer, "send", broken)
    made = planned(runner, tiny("llama"))
    first = start(made)
    before = tokens(first)
    with pytest.raises(WorkerFailed, match="failed in send_weights: ValueError: asked to fail"):
        start(made, lender=first.lender)
    assert tokens(first) == before
