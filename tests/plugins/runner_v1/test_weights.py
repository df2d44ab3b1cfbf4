"""The loaded model is transformers' own, number for number, whatever the file calls its weights."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from enginebay.errors import ModelError
from enginebay.worker.loader import load_causal_lm
from support.parity import Reference
from support.tiny_models import FAMILIES, edit_config, make_model


def _load(folder: Path, dtype: str = "float32") -> Any:
    architecture = json.loads((folder / "config.json").read_text("utf-8"))["architectures"][0]
    return load_causal_lm(folder, architecture=architecture, dtype=dtype, device="cpu", attention="eager")


def _numbers(model: Any) -> dict[str, torch.Tensor]:
    """Every parameter and buffer, those that no file holds among them."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


def _unequal(ours: Any, theirs: Any) -> list[str]:
    mine, other = _numbers(ours), _numbers(theirs)
    assert mine.keys() == other.keys()
    return [n for n in mine if mine[n].dtype != other[n].dtype or not torch.equal(mine[n], other[n])]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_number_is_the_one_that_transformers_loads(
    tiny: Callable[[str], Path], reference_of: Callable[[str], Reference], family: str
) -> None:
    assert not _unequal(_load(tiny(family)), reference_of(family).model)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["deepseek-v3", "gpt-oss", "mixtral", "gemma3n", "granite-moe"])
def test_what_stays_in_float32_is_what_transformers_keeps(tiny: Callable[[str], Path], family: str, dtype: str) -> None:
    """A router's correction, rounded, would choose other experts."""
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(tiny(family), dtype=getattr(torch, dtype))
    ours = _load(tiny(family), dtype)
    assert {n: p.dtype for n, p in ours.named_parameters()} == {n: p.dtype for n, p in theirs.named_parameters()}
    mine, other = ours.state_dict(), theirs.state_dict()
    assert not [name for name in other if not torch.equal(mine[name], other[name])]


def _renamed(folder: Path, rename: Callable[[str], str], **more: torch.Tensor) -> Path:
    """The same weights under other names, and tensors that are no weights."""
    tensors = load_file(folder / "model.safetensors")
    new = {rename(name): tensor for name, tensor in tensors.items()} | more
    assert new.keys() != tensors.keys()
    save_file(new, folder / "model.safetensors")
    return folder


MASK = torch.ones(1, 1, 8, 8, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("family", "rename", "more"),
    [
        (
            "gpt2",
            lambda name: name.removeprefix("transformer."),
            {"h.0.attn.bias": MASK, "h.0.attn.masked_bias": torch.tensor(-1e4)},
        ),
        ("opt", lambda name: name.removeprefix("model."), {}),
        ("llama", lambda name: name.removeprefix("model."), {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}),
        (
            "gpt-neox",
            lambda name: name.replace("lm_head.", "embed_out."),
            {"gpt_neox.layers.0.attention.bias": MASK, "gpt_neox.layers.0.attention.masked_bias": torch.tensor(-1e4)},
        ),
    ],
    ids=["gpt2", "opt", "llama", "gpt-neox"],
)
def test_old_names(tmp_path: Path, family: str, rename: Callable[[str], str], more: dict[str, torch.Tensor]) -> None:
    folder = make_model(tmp_path / "model", family)
    before = _load(folder)
    expected = {name: tensor.clone() for name, tensor in _numbers(before).items()}
    after = _numbers(_load(_renamed(folder, rename, **more)))
    assert after.keys() == expected.keys()
    assert all(torch.equal(after[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("family", "pattern"),
    [
        ("mixtral", r"block_sparse_moe\.experts\.3\.w3\.weight$"),
        ("phimoe", r"block_sparse_moe\.experts\.0\.w1\.weight$"),
        ("qwen3-moe", r"mlp\.experts\.2\.up_proj\.weight$"),
        ("deepseek-v3", r"mlp\.experts\.2\.down_proj\.weight$"),
        ("granite-moe", r"block_sparse_moe\.input_linear\.weight$"),
        ("granite-moe", r"block_sparse_moe\.router\.layer\.weight$"),
        ("ernie4.5-moe", r"mlp\.moe_statics\.e_score_correction_bias$"),
        ("minimax-m2", r"block_sparse_moe\.experts\.1\.w2\.weight$"),
    ],
)
def test_the_names_in_the_file_are_not_the_modules(tiny: Callable[[str], Path], family: str, pattern: str) -> None:
    """What makes the tests above say something: transformers saves these families under their published names."""
    names = load_file(tiny(family) / "model.safetensors")
    assert [name for name in names if re.search(pattern, name)], sorted(names)


def test_merged_experts_load_as_they_are(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "mixtral")
    model = _load(folder)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(expected, folder / "model.safetensors")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in _load(folder).state_dict().items())


def _refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        _load(folder)
    message = str(caught.value)
    assert message.isprintable()
    return message.removeprefix(f"{folder}: ")


def _without(folder: Path, pattern: str) -> Path:
    tensors = load_file(folder / "model.safetensors")
    save_file({n: t for n, t in tensors.items() if not re.search(pattern, n)}, folder / "model.safetensors")
    return folder


def test_experts_that_the_file_lacks(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "qwen3-moe")
    assert _refusal(_without(folder, r"experts\.[23]\.up_proj")) == (
        "2 stacks of experts are not whole: the file lacks "
        "model.layers.0.mlp.experts.gate_up_proj[2], model.layers.2.mlp.experts.gate_up_proj[2]"
    )
    assert _refusal(_without(folder, r"experts\.\d+\.(up|gate)_proj")) == (
        "2 weights that Qwen3MoeForCausalLM needs are missing: "
        "model.layers.0.mlp.experts.gate_up_proj, model.layers.2.mlp.experts.gate_up_proj"
    )


def test_more_experts_than_config_json_has(tmp_path: Path) -> None:
    folder = edit_config(make_model(tmp_path / "model", "mixtral"), num_local_experts=3)
    message = _refusal(folder)
    assert message.startswith("the weights do not fit config.json: model.layers.0.block_sparse_moe.gate.weight is [4, ")
    folder = make_model(tmp_path / "other", "mixtral")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.block_sparse_moe.experts.4.w1.weight"
    save_file(tensors | {name: tensors[name.replace("4", "3")].clone()}, folder / "model.safetensors")
    assert _refusal(folder) == (
        f"1 weights have no place in MixtralForCausalLM: {name}; config.json and the weights do not belong together"
    )


def test_an_expert_of_another_shape(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "mixtral")
    name = "model.layers.1.block_sparse_moe.experts.2.w1.weight"
    save_file(load_file(folder / "model.safetensors") | {name: torch.ones(95, 48)}, folder / "model.safetensors")
    assert _refusal(folder) == f"the weights do not fit config.json: {name} is [95, 48] instead of [96, 48]"


def test_a_weight_under_both_its_names(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "gpt2")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"wte.weight": tensors["transformer.wte.weight"] + 1}, folder / "model.safetensors")
    assert _refusal(folder) == (
        "wte.weight is transformer.wte.weight under another name, and the file has both; which of them counts?"
    )


def test_a_buffer_that_transformers_does_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    folder = make_model(tmp_path / "model", "llama")
    original = modeling_llama.LlamaMLP.__init__

    def build(module: Any, *arguments: Any) -> None:
        original(module, *arguments)
        module.register_buffer("own", torch.ones(2), persistent=False)

    monkeypatch.setattr(modeling_llama.LlamaMLP, "__init__", build)
    message = "model.layers.0.mlp (LlamaMLP) has buffers that no file holds, and transformers' rule does not set: own"
    assert _refusal(folder) == message
