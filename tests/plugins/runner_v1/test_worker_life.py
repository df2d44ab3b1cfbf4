"""What of a sleep and of a growth shows inside the runner: memory given back, the very bits of the weights. E7."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from enginebay import LLM
from enginebay.engine.core import EngineCore
from enginebay.errors import ModelError
from enginebay.messages import Sleep, WakeUp
from enginebay.worker import Worker
from enginebay.worker.loader_empty import weights_of
from support.other_weights import tensors_of
from support.worker_life import Starter, config, groups, planned, tokens

Tiny = Callable[[str], Path]

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


@pytest.fixture
def start() -> Iterator[Starter]:
    with groups() as starter:
        yield starter


def test_it_is_said_why_weights_do_not_fit(tiny: Tiny) -> None:  # E7
    good = tensors_of(tiny("llama"))
    name = next(name for name in good if name.endswith("q_proj.weight"))
    refused: dict[str, dict[str, torch.Tensor]] = {
        "1 weights that LlamaForCausalLM needs are missing": {k: v for k, v in good.items() if k != name},
        "the weights do not fit config.json": {**good, name: good[name].t().contiguous()[:8]},
        "1 weights have no place in LlamaForCausalLM": {**good, "model.layers.0.extra.weight": torch.zeros(2, 2)},
    }
    with LLM(config("v1", tiny("llama"))) as llm:
        for said, tensors in refused.items():
            with pytest.raises(ModelError, match=said):
                llm.update_weights(tensors=tensors.items())
        with pytest.raises(ModelError, match="more than is left of the model's weights"):
            llm.update_weights(tensors=[("huge", torch.zeros(1).expand(2**28))])


def test_sleep_gives_memory_back(tiny: Tiny, start: Starter) -> None:  # E7
    core = start(planned("v1", tiny("llama")))
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


MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama whatever the batch": ("llama", {"batch_invariant": True}),
    "experts": ("mixtral", {}),
}


@pytest.mark.parametrize("mode", [pytest.param(one, marks=pytest.mark.soak) if MODES[one][1] else one for one in MODES])
def test_a_group_grows_without_a_file(tiny: Tiny, start: Starter, mode: str, tmp_path: Path) -> None:
    family, engine = MODES[mode]
    model = shutil.copytree(tiny(family), tmp_path / "model")
    made = planned("v1", model, **engine)
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
