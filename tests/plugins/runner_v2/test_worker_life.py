"""Engines on runner v2 that sleep, wake, change their weights and grow: the tokens of a fresh engine. E7."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from enginebay import LLM, SamplingParams
from enginebay.config import load
from enginebay.engine.admission.admit import Ask
from enginebay.engine.core import EngineCore
from enginebay.engine.startup.assembly import start_in
from enginebay.engine.startup.plan import Plan, plan
from enginebay.engine.startup.texts import read_tokenizer
from enginebay.errors import EngineAsleep, ModelError
from enginebay.messages import UpdateWeights
from enginebay.plugins import PluginHost
from enginebay.runtime import system_runtime
from support.other_weights import redraw, tensors_of

PROMPTS = [[3, 5, 7, 11], list(range(1, 41)), [2] * 17]
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)
Tiny = Callable[[str], Path]
Starter = Callable[..., EngineCore]


def config(model: Path, **model_settings: Any) -> dict[str, Any]:
    return {
        "model": {"path": str(model), **model_settings},
        "runner": {"use": "v2", "options": {"compile": "wait"}},
        "cache": {"num_blocks": 64},
    }


def answers(llm: LLM) -> list[tuple[int, ...]]:
    return [tuple(one.token_ids) for one in llm.generate(PROMPTS, GREEDY)]


def fresh(model: Path, **settings: Any) -> list[tuple[int, ...]]:
    with LLM(config(model, **settings)) as llm:
        return answers(llm)


@pytest.fixture(scope="module")
def other(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A family's tiny model with other weights."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = redraw(tiny(family), tmp_path_factory.mktemp(family) / "other")
        return made[family]

    return folder


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("llama", "float32"), ("llama", "bfloat16"), pytest.param("gemma2", "float32", marks=pytest.mark.soak)],
)
def test_all_of_a_life(tiny: Tiny, other: Callable[[str], Path], family: str, dtype: str) -> None:  # E7
    one, two = tiny(family), other(family)
    with LLM(config(one, dtype=dtype)) as llm:
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
    assert second == fresh(two, dtype=dtype)
    assert first != second, "a test that cannot fail"


def test_weights_that_do_not_fit_change_nothing(tiny: Tiny) -> None:  # E7
    good = tensors_of(tiny("llama"))
    name = next(name for name in good if name.endswith("q_proj.weight"))
    with LLM(config(tiny("llama"))) as llm:
        before = answers(llm)
        for tensors in ({k: v for k, v in good.items() if k != name}, {**good, name: good[name].t().contiguous()[:8]}):
            with pytest.raises(ModelError):
                llm.update_weights(tensors=tensors.items())
            assert answers(llm) == before
        with pytest.raises(ModelError):
            llm.update_weights(tiny("gemma2"))
        assert answers(llm) == before


@pytest.fixture
def start() -> Iterator[Starter]:
    """Starts groups, and stops them at the end."""
    cores: list[EngineCore] = []

    def started(made: Plan, **options: Any) -> EngineCore:
        core = start_in(trace.INVALID_SPAN, made, system_runtime(), PluginHost(), read_tokenizer(made), **options)
        cores.append(core)
        return core

    yield started
    for core in cores:
        core.stop()


def tokens(core: EngineCore) -> list[tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for index, prompt in enumerate(PROMPTS):
        core.add_request(Ask(request_id=f"r{index}", prompt_token_ids=tuple(prompt), params=GREEDY))
    while core.has_work():
        for output in core.step()[0]:
            found.setdefault(output.request_id, []).extend(output.token_ids)
    return [tuple(found[f"r{index}"]) for index in range(len(PROMPTS))]


@pytest.mark.parametrize("sets", [(), pytest.param(("executor.use=mp", "parallel.tensor_parallel_size=2"))])
def test_a_group_grows_without_a_file_on_the_weights_in_force(
    tiny: Tiny, other: Callable[[str], Path], start: Starter, sets: tuple[str, ...], tmp_path: Path
) -> None:  # E7
    model = shutil.copytree(tiny("llama"), tmp_path / "model")
    made = plan(load(config(model), sets=sets, environ={}), PluginHost())
    first = start(made)
    before = tokens(first)
    for path in model.glob("*.safetensors"):
        path.unlink()  # nobody can read it any more
    assert tokens(start(made, lender=first.lender)) == before
    first.control(UpdateWeights(path=str(other("llama")), version="2"))
    second = start(made, lender=first.lender)
    assert tokens(second) == tokens(first) == fresh(other("llama"))
    assert second.status().facts["weights"] == "2"
