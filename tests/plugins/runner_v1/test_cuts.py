"""A rank's weights are bit for bit the parts of the whole ones, and all ranks' parts together are the whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from enginebay.worker.loader import load_causal_lm
from enginebay.worker.parallel.collectives import TensorGroup
from enginebay_runner_v1.attention import ATTENTION, register
from enginebay_runner_v1.sharding import TensorSplit
from support.tiny_models import FAMILIES

Tiny = Callable[[str], Path]


def load_part(folder: Path, family: str, rank: int, size: int) -> tuple[Any, TensorSplit]:
    register()
    split = TensorSplit(TensorGroup(None, rank, size))
    model = load_causal_lm(
        folder, architecture=FAMILIES[family][0], dtype="float32", device="cpu", attention=ATTENTION, part=split
    )
    return model, split


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "family", ["llama", "llama-rope-llama3", "mixtral", "cohere", "gpt-neox", "phi3", "granite-swa"]
)
def test_the_parts_are_slices_and_make_the_whole(
    load: Callable[[str, str], Any], tiny: Tiny, family: str, size: int
) -> None:
    whole = dict(load(family, FAMILIES[family][0]).named_parameters())
    seen = {name: torch.zeros_like(weight) for name, weight in whole.items()}
    for rank in range(size):
        model, split = load_part(tiny(family), family, rank, size)
        for name, part in model.named_parameters():
            cut = split.plan.cuts.get(name)
            expected = whole[name] if cut is None else cut.take(whole[name])
            assert torch.equal(part, expected), name
            if cut is None:
                seen[name] += 1
            else:
                for one in cut.ranges:
                    seen[name].narrow(cut.dim, one.start, len(one)).add_(1)
    for name, times in seen.items():
        assert int(times.min()) >= 1, f"{name} is not whole"


def test_experts_that_lie_one_by_one_are_cut_one_by_one(
    load: Callable[[str, str], Any], tiny: Tiny, tmp_path: Path
) -> None:
    """As Mixtral's file has them: no rank holds a whole stack on the way."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((tiny("mixtral") / name).read_bytes())
    state = {}
    for name, weight in load_file(tiny("mixtral") / "model.safetensors").items():
        state[name] = weight.contiguous()
    assert any(".experts.0.w1" in name for name in state), "the file has experts one by one"
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    whole = dict(load("mixtral", "MixtralForCausalLM").named_parameters())
    for rank in range(2):
        model, split = load_part(folder, "mixtral", rank, 2)
        for name, part in model.named_parameters():
            if "experts" in name:
                assert torch.equal(part, split.plan.cuts[name].take(whole[name]))
                assert part.untyped_storage().nbytes() == part.numel() * 4


def test_a_bias_of_a_sum_is_the_first_ranks(tiny: Tiny) -> None:
    has = [load_part(tiny("llama-rope-llama3"), "llama-rope-llama3", rank, 2)[0] for rank in range(2)]
    assert [model.model.layers[0].self_attn.o_proj.bias is None for model in has] == [False, True]
    assert [model.model.layers[0].mlp.down_proj.bias is None for model in has] == [False, True]
    assert has[1].model.layers[0].self_attn.q_proj.bias is not None


def test_a_tied_embedding_is_one_tensor_still(tiny: Tiny) -> None:
    model, _ = load_part(tiny("llama"), "llama", 1, 2)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert tuple(model.lm_head.weight.shape) == (100, 48)
