"""Whatever is wrong with config.json or the weights is one ``ModelError`` of one line, not too long, before it runs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from enginebay.errors import ModelError
from enginebay.worker.loader import load_causal_lm
from support.tiny_models import edit_config, make_model

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model", "llama")


def load(folder: Path, architecture: str = "LlamaForCausalLM") -> Any:
    return load_causal_lm(folder, architecture=architecture, dtype="float32", device="cpu", attention="sdpa")


def refusal(folder: Path, architecture: str = "LlamaForCausalLM") -> str:
    with pytest.raises(ModelError) as caught:
        load(folder, architecture)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message.replace(str(folder), "")) < 600
    return message


def rewrite(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace, add or (None) take away tensors; ``__`` in a name stands for a dot."""
    old = load_file(folder / "model.safetensors")
    new = old | {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file({name: t for name, t in new.items() if t is not None}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("num_attention_heads", 0, "ZeroDivisionError: "),
        ("num_attention_heads", -6, "RuntimeError: "),
        ("num_key_value_heads", 0, "ZeroDivisionError: "),
        ("hidden_size", -1, "StrictDataclassClassValidationError: "),
        ("hidden_size", "48", "StrictDataclassFieldValidationError: Validation error for field 'hidden_size': "),
        ("hidden_size", 48.0, "StrictDataclassFieldValidationError: "),
        ("num_hidden_layers", "3", "StrictDataclassFieldValidationError: "),
        ("hidden_act", "no_such_function", "KeyError: 'no_such_function'"),
        ("hidden_act", ["silu"], "StrictDataclassFieldValidationError: "),
        ("rms_norm_eps", "x", "StrictDataclassFieldValidationError: "),
        ("head_dim", 0, "ZeroDivisionError: "),
        ("head_dim", -8, "RuntimeError: "),
        ("vocab_size", 10**18, "RuntimeError: "),
        ("rope_scaling", [1], "StrictDataclassFieldValidationError: "),
        ("rope_parameters", {"rope_type": "llama3", "rope_theta": 1e4}, "KeyError: "),
        ("tie_word_embeddings", "false", "StrictDataclassFieldValidationError: "),
        ("dtype", ["float32"], "IndexError: "),
        ("text_config", {"hidden_size": 24}, "AttributeError: "),
        ("pad_token_id", 9999, "AssertionError: Padding_idx must be within num_embeddings"),
        ("eos_token_id", [[2]], "StrictDataclassFieldValidationError: "),
        ("id2label", 5, "AttributeError: "),
        ("to_dict", "x", "TypeError: "),
        ("__class__", "x", "TypeError: "),
        ("hidden_act", "x" * 5000, "KeyError: 'xxx"),
    ],
)
def test_a_value_of_config_json_that_builds_no_model(folder: Path, key: str, value: object, error: str) -> None:
    edit_config(folder, **{key: value})
    assert refusal(folder).startswith(f"{folder / 'config.json'}: LlamaForCausalLM cannot be built from it: {error}")


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 0.0},
        {"rope_type": "default", "rope_theta": 0.0},
    ],
)
def test_rope_that_gives_no_frequencies(folder: Path, rope: dict[str, object]) -> None:
    edit_config(folder, rope_parameters=rope)
    assert refusal(folder) == (f"{folder / 'config.json'}: its rope settings give frequencies that are not finite")


@pytest.mark.parametrize(
    ("family", "architecture", "said", "own"),
    [
        ("mistral-window", "LlamaForCausalLM", "mistral", "llama"),
        ("qwen3", "Qwen3ForCausalLM", "qwen2", "qwen3"),
        ("llama", "LlamaForCausalLM", "x\ny", "llama"),
    ],
)
def test_a_model_type_that_is_not_the_architectures(
    tmp_path: Path, family: str, architecture: str, said: str, own: str
) -> None:
    folder = edit_config(make_model(tmp_path / "model", family), model_type=said)
    assert refusal(folder, architecture) == (
        f"{folder / 'config.json'}: model_type is '{said.replace(chr(10), '?')}', and {architecture} is of '{own}'"
    )


@pytest.mark.parametrize("layers", [28, 3000, 10**9])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_more_layers_than_tensors_build_nothing(tmp_path: Path, family: str, layers: int) -> None:
    folder = make_model(tmp_path / "model", family, num_hidden_layers=1)
    tensors = len(load_file(folder / "model.safetensors"))
    edit_config(folder, num_hidden_layers=layers, layer_types=None)
    start = time.monotonic()
    architecture = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[family]
    assert refusal(folder, architecture) == (
        f"{folder / 'config.json'}: num_hidden_layers is {layers}, and the weights are only {tensors} tensors"
    )
    assert time.monotonic() - start < 2.0


@pytest.mark.parametrize(
    ("dtype", "code"),
    [(torch.int8, "I8"), (torch.bool, "BOOL"), (torch.int64, "I64"), (torch.complex64, "C64")],
)
def test_weights_of_a_dtype_that_holds_none(folder: Path, dtype: torch.dtype, code: str) -> None:
    rewrite(folder, model__norm__weight=torch.ones(48).to(dtype))
    assert refusal(folder) == (
        f"{folder}: 1 weights are of a dtype that is not floating-point: model.norm.weight is {code}"
    )


def test_many_weights_of_such_a_dtype_are_counted(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.to(torch.int8) for name, tensor in tensors.items()}, folder / "model.safetensors")
    assert refusal(folder).startswith(
        f"{folder}: {len(tensors)} weights are of a dtype that is not floating-point: {EMBEDDING} is I8, "
    )


def test_shapes_that_differ_are_told_of_by_the_first_three(folder: Path) -> None:
    rewrite(folder, model__norm__weight=torch.ones(7))
    assert refusal(folder) == f"{folder}: the weights do not fit config.json: model.norm.weight is [7] instead of [48]"
    edit_config(folder, vocab_size=198, intermediate_size=95)
    message = refusal(folder)
    assert message.startswith(f"{folder}: the weights do not fit config.json: {EMBEDDING} is [199, 48] instead of [198")
    assert message.count(" instead of ") == 3
    assert message.endswith(", …")


def test_names_of_a_strangers_file_cannot_break_the_line(folder: Path) -> None:
    rewrite(folder, **{"evil\n\x1b[31mname": torch.zeros(2)})
    assert refusal(folder) == (
        f"{folder}: 1 weights have no place in LlamaForCausalLM: evil??[31mname; "
        "config.json and the weights do not belong together"
    )


def test_a_tensor_in_two_shards(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "a.safetensors")
    save_file({EMBEDDING: tensors[EMBEDDING] * 0}, folder / "b.safetensors")
    index = {name: "b.safetensors" if name == EMBEDDING else "a.safetensors" for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert refusal(folder) == f"{folder} has the tensor '{EMBEDDING}' twice, in a.safetensors and b.safetensors"


def test_tied_weights_under_the_name_of_the_copy(folder: Path) -> None:
    whole = load(folder)
    embedding = load_file(folder / "model.safetensors")[EMBEDDING]
    rewrite(folder, model__embed_tokens__weight=None, lm_head__weight=embedding)
    model = load(folder)
    assert torch.equal(model.model.embed_tokens.weight, whole.model.embed_tokens.weight)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_tied_copies_with_a_number_that_is_none(folder: Path) -> None:
    embedding = load_file(folder / "model.safetensors")[EMBEDDING]
    embedding[7, 0] = torch.nan
    rewrite(folder, model__embed_tokens__weight=embedding, lm_head__weight=embedding.clone())
    assert bool(load(folder).lm_head.weight[7, 0].isnan())
    other = embedding.clone()
    other[8, 0] += 1
    rewrite(folder, lm_head__weight=other)
    assert refusal(folder) == (f"{folder}: config.json ties {HEAD} to {EMBEDDING}, but the file has two different ones")
