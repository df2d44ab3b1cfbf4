"""Real models that sleep, wake, and change their weights: the tokens of a fresh engine on the same weights. E7."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from opentelemetry import trace
from safetensors.torch import load_file

from enginebay import LLM, SamplingParams
from enginebay.config import load
from enginebay.engine.admission.admit import Ask
from enginebay.engine.core import EngineCore
from enginebay.engine.startup.assembly import start_in
from enginebay.engine.startup.plan import Plan, plan
from enginebay.engine.startup.texts import read_tokenizer
from enginebay.errors import EngineAsleep, ModelError, WorkerFailed
from enginebay.messages import Sleep, UpdateWeights, WakeUp, WeightsSent
from enginebay.plugins import PluginHost
from enginebay.runtime import system_runtime
from enginebay.worker import Worker, peer
from enginebay.worker.loader_empty import weights_of
from support.other_weights import redraw, tensors_of

PROMPTS = [[3, 5, 7, 11], list(range(1, 41)), [2] * 17]
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)
Tiny = Callable[[str], Path]
Starter = Callable[..., EngineCore]


def config(model: Path, **engine: Any) -> dict[str, Any]:
    return {
        "model": {"path": str(model)},
        "runner": {"use": "v1"},
        "cache": {"num_blocks": 64},
        "engine": engine,
    }


def answers(llm: LLM) -> list[tuple[int, ...]]:
    return [tuple(one.token_ids) for one in llm.generate(PROMPTS, GREEDY)]


def fresh(model: Path, *sets: str, **engine: Any) -> list[tuple[int, ...]]:
    with LLM(config(model, **engine), sets=sets) as llm:
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


WORKERS: list[Worker] = []
"""Those of the groups of a test."""


@pytest.fixture(autouse=True)
def _workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    original = Worker.__init__

    def init(self: Worker, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        WORKERS.append(self)

    monkeypatch.setattr(Worker, "__init__", init)
    yield
    WORKERS.clear()


MODES: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "llama": ("llama", (), {}),  # the file's dtype is kept: weights are mapped
    "llama in half": ("llama", ("model.dtype=bfloat16",), {}),  # they are converted
    "llama whatever the batch": ("llama", (), {"batch_invariant": True}),  # modules hold weights in their own way
    "tied": ("gemma2", (), {}),
    "experts": ("mixtral", (), {}),  # merged by the loader
}

EACH_MODE = [pytest.param(mode, marks=pytest.mark.soak) if MODES[mode][2] else mode for mode in MODES]
"""The mode whose rules are found anew for each set of weights takes long."""


@pytest.mark.parametrize("mode", EACH_MODE)
def test_all_of_a_life(tiny: Tiny, other: Callable[[str], Path], mode: str) -> None:  # E7
    family, sets, engine = MODES[mode]
    one, two = tiny(family), other(family)
    with LLM(config(one, **engine), sets=sets) as llm:
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
    assert second == fresh(two, *sets, **engine)
    assert first != second, "a test that cannot fail"


@pytest.fixture
def llm(tiny: Tiny) -> Iterator[LLM]:
    with LLM(config(tiny("llama"))) as llm:
        yield llm


def test_weights_that_do_not_fit_change_nothing(llm: LLM, tiny: Tiny, tmp_path: Path) -> None:  # E7
    before, good = answers(llm), tensors_of(tiny("llama"))
    name = next(name for name in good if name.endswith("q_proj.weight"))
    refused: dict[str, dict[str, torch.Tensor]] = {
        "1 weights that LlamaForCausalLM needs are missing": {k: v for k, v in good.items() if k != name},
        "the weights do not fit config.json": {**good, name: good[name].t().contiguous()[:8]},
        "1 weights have no place in LlamaForCausalLM": {**good, "model.layers.0.extra.weight": torch.zeros(2, 2)},
    }
    for said, tensors in refused.items():
        with pytest.raises(ModelError, match=said):
            llm.update_weights(tensors=tensors.items())
        assert answers(llm) == before
    for folder in (tmp_path, tmp_path / "nowhere", tiny("gemma2")):
        with pytest.raises(ModelError):
            llm.update_weights(folder)
        assert answers(llm) == before
    with pytest.raises(ModelError, match="more than is left of the model's weights"):
        llm.update_weights(tensors=[("huge", torch.zeros(1).expand(2**28))])
    assert answers(llm) == before


def test_a_folder_with_nothing_but_the_weights(llm: LLM, other: Callable[[str], Path], tmp_path: Path) -> None:
    """The model stays what it is: the config of the folder is not asked."""
    for path in other("llama").glob("*.safetensors"):
        shutil.copy(path, tmp_path)
    llm.update_weights(tmp_path)
    assert answers(llm) == fresh(other("llama"))


def test_sleep_gives_memory_back(tiny: Tiny, start: Starter) -> None:  # E7
    core = start(planned(tiny("llama")))
    runner = _runner_of(core)
    core.control(Sleep(level=1))
    assert runner._cache is None
    assert not [module for module in runner._model.modules() if "eb" in module.__dict__]
    core.control(WakeUp())
    core.control(Sleep(level=2))
    assert runner._model is None
    core.control(WakeUp())
    assert runner._cache.num_blocks == 64
    tokens(core)


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


def planned(model: Path, *sets: str, **engine: Any) -> Plan:
    return plan(load(config(model, **engine), sets=sets, environ={}), PluginHost())


def tokens(core: EngineCore) -> list[tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for index, prompt in enumerate(PROMPTS):
        core.add_request(Ask(request_id=f"r{index}", prompt_token_ids=tuple(prompt), params=GREEDY))
    while core.has_work():
        for output in core.step()[0]:
            found.setdefault(output.request_id, []).extend(output.token_ids)
    return [tuple(found[f"r{index}"]) for index in range(len(PROMPTS))]


@pytest.mark.parametrize("mode", [mode for mode in EACH_MODE if mode not in ("llama in half", "tied")])
def test_a_group_grows_without_a_file(tiny: Tiny, start: Starter, mode: str, tmp_path: Path) -> None:
    family, sets, engine = MODES[mode]
    model = shutil.copytree(tiny(family), tmp_path / "model")
    made = planned(model, *sets, **engine)
    first = start(made)
    before = tokens(first)
    for path in model.glob("*.safetensors"):
        path.rename(tmp_path / path.name)  # nobody can read it any more
    second = start(made, lender=first.lender)
    assert tokens(second) == before
    assert tokens(first) == before
    one, two = (_weights(core) for core in (first, second))
    assert list(one) == list(two)
    for name, tensor in one.items():
        assert torch.equal(_bits(tensor), _bits(two[name])), name
    on_disk = load_file(tmp_path / "model.safetensors")
    for name in two.keys() & on_disk.keys():
        assert torch.equal(_bits(two[name]), _bits(on_disk[name])), name
    assert len(two.keys() & on_disk.keys()) > 10 if mode == "experts" else two.keys() == on_disk.keys()
    assert {path.name for path in _run_folder(second).iterdir() if path.name.startswith("peer")} == set()


def test_what_grows_has_the_weights_in_force(tiny: Tiny, other: Callable[[str], Path], start: Starter) -> None:
    made = planned(tiny("llama"))
    first = start(made)
    first.control(UpdateWeights(path=str(other("llama")), version="2"))
    second = start(made, lender=first.lender)
    assert tokens(second) == tokens(first) == fresh(other("llama"))
    assert second.status().facts["weights"] == "2"


@pytest.mark.soak
def test_two_ranks_live_alike(tiny: Tiny, other: Callable[[str], Path], start: Starter, tmp_path: Path) -> None:  # E7
    """Each takes its part of other weights, and of a running group's; none of them reads the file that is gone."""
    model = shutil.copytree(tiny("llama"), tmp_path / "model")
    made = planned(model, "executor.use=mp", "parallel.tensor_parallel_size=2")
    first = start(made)
    before = tokens(first)
    first.control(Sleep(level=2))
    first.control(WakeUp())
    assert tokens(first) == before
    first.control(UpdateWeights(path=str(other("llama"))))
    changed = tokens(first)
    assert changed == fresh(other("llama"))
    for path in model.glob("*.safetensors"):
        path.unlink()
    second = start(made, lender=first.lender)
    assert tokens(second) == tokens(first) == changed


def test_who_sleeps_lends_nothing(tiny: Tiny, start: Starter) -> None:
    made = planned(tiny("llama"))
    first = start(made)
    first.control(Sleep(level=2))
    with pytest.raises(EngineAsleep):
        start(made, lender=first.lender)


def test_a_lender_that_cannot_send_fails_the_start(tiny: Tiny, start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> WeightsSent:
        raise ValueError("asked to fail")

    monkeypatch.setattr(peer, "send", broken)
    made = planned(tiny("llama"))
    first = start(made)
    before = tokens(first)
    with pytest.raises(WorkerFailed, match="failed in send_weights: ValueError: asked to fail"):
        start(made, lender=first.lender)
    assert tokens(first) == before


def _weights(core: EngineCore) -> dict[str, torch.Tensor]:
    return weights_of(_runner_of(core)._model)


def _runner_of(core: EngineCore) -> Any:
    executor: Any = core._parts.executor
    [worker] = [one for one in WORKERS if one._payload.incarnation == executor._session.incarnation]
    return worker._start.runner


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _run_folder(core: EngineCore) -> Path:
    return core._parts.executor.context.run_folder()
