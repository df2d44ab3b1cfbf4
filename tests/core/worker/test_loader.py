"""Weights are mapped, not copied; what is missing, too much, of another shape or damaged is told in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from enginebay.errors import ModelError
from enginebay.worker.loader import load_causal_lm, map_tensors, torch_dtype
from support.tiny_models import edit_config, make_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model", "llama")


def load(folder: Path, *, dtype: str = "float32", architecture: str = "LlamaForCausalLM") -> torch.nn.Module:
    model: torch.nn.Module = load_causal_lm(
        folder, architecture=architecture, dtype=dtype, device="cpu", attention="sdpa"
    )
    return model


def rewrite(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    """Replace, add or (None) take away tensors of the folder's one file."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in change.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "new.safetensors")
    (folder / "new.safetensors").replace(folder / "model.safetensors")


def logits_of(model: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        answer: torch.Tensor = model(input_ids=torch.arange(30).unsqueeze(0), use_cache=False).logits
    return answer


@pytest.mark.parametrize(
    "family", ["llama", "llama-rope-llama3", "llama-rope-yarn", "mistral-window", "qwen2", "qwen3"]
)
def test_it_is_the_model_that_transformers_loads(tmp_path: Path, family: str) -> None:
    import transformers

    folder = make_model(tmp_path / "model", family)
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    theirs = getattr(transformers, architecture).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    ours = load(folder, architecture=architecture)
    assert torch.equal(logits_of(ours), logits_of(theirs.eval()))
    assert not ours.training
    assert not any(parameter.requires_grad for parameter in ours.parameters())
    assert not any(t.is_meta for t in [*ours.parameters(), *ours.buffers()])


def test_shards(tmp_path: Path, folder: Path) -> None:
    whole = logits_of(load(folder))
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, own in shards.items():
        save_file({name: tensors[name] for name in own}, folder / shard)
    index = {"weight_map": {name: shard for shard, own in shards.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    assert torch.equal(logits_of(load(folder)), whole)


def test_tied_weights_are_one_tensor(folder: Path) -> None:
    model = load(folder)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_a_tied_copy_in_the_file_must_be_equal(folder: Path) -> None:
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    rewrite(folder, {"lm_head.weight": embedding.clone()})
    model = load(folder)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    rewrite(folder, {"lm_head.weight": embedding + 1})
    message = (
        f"{folder}: config.json ties lm_head.weight to model.embed_tokens.weight, but the file has two different ones"
    )
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        load(folder)


def test_another_dtype_is_cast(folder: Path) -> None:
    model = load(folder, dtype="bfloat16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32}, "frequencies stay exact"
    with pytest.raises(ModelError, match=r"^'float7' is no dtype of torch; use float32, bfloat16 or float16$"):
        torch_dtype("float7")


def test_missing_weights_are_named(folder: Path) -> None:
    rewrite(folder, {f"model.layers.{i}.mlp.up_proj.weight": None for i in range(3)} | {"model.norm.weight": None})
    message = (
        f"{folder}: 4 weights that LlamaForCausalLM needs are missing: model.layers.0.mlp.up_proj.weight, "
        "model.layers.1.mlp.up_proj.weight, model.layers.2.mlp.up_proj.weight, …"
    )
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        load(folder)


def test_weights_without_a_place_are_named(folder: Path) -> None:
    rewrite(folder, {"model.extra.weight": torch.ones(2), "model.rotary_emb.inv_freq": torch.ones(4)})
    message = (
        f"{folder}: 1 weights have no place in LlamaForCausalLM: model.extra.weight; "
        "config.json and the weights do not belong together"
    )
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        load(folder)


def test_another_shape(folder: Path) -> None:
    rewrite(folder, {"model.norm.weight": torch.ones(7)})
    with pytest.raises(ModelError, match=r"the weights do not fit config\.json: .*model\.norm\.weight"):
        load(folder)


def test_a_truncated_file(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match=rf"^{re.escape(str(path))}: not a whole safetensors file \(.*\); copy or"):
        list(map_tensors(folder))


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="safetensors"):
        load(folder)


def test_a_class_that_transformers_does_not_have(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"^transformers \S+ has no model class named 'LlamaForPoetry'$"):
        load(folder, architecture="LlamaForPoetry")


def test_a_config_that_builds_no_model(folder: Path) -> None:
    edit_config(folder, hidden_act="no_such_function")
    with pytest.raises(ModelError, match=r"config\.json: LlamaForCausalLM cannot be built from it"):
        load(folder)


def test_no_second_copy_in_memory(tmp_path: Path) -> None:
    """In a fresh process, anonymous memory grows by less than a tenth of the weights: they are mapped from the file."""
    folder = make_model(
        tmp_path / "model", "llama", hidden_size=768, intermediate_size=3072, num_hidden_layers=6, head_dim=128
    )
    size = (folder / "model.safetensors").stat().st_size
    code = """
import sys
from pathlib import Path
import torch, transformers
from transformers import LlamaForCausalLM
from enginebay.worker.loader import load_causal_lm
def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
before = anonymous()
model = load_causal_lm(
    Path(sys.argv[1]), architecture="LlamaForCausalLM", dtype="float32", device="cpu", attention="sdpa"
)
assert sum(float(p.sum()) for p in model.parameters()) != 0.0
print(anonymous() - before)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(folder)], capture_output=True, text=True, check=True, timeout=120
    )
    assert size > 200e6
    assert int(done.stdout) < 0.1 * size


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
