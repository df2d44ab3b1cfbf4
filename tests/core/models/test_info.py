"""What is wrong with a model folder is said in one line, before torch is asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from enginebay.errors import ModelError
from enginebay.messages import ModelInfo
from enginebay.models import import_gguf, read_model_info
from support.tiny_gguf import write_gguf


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from enginebay.models._convert import convert

    base = tmp_path_factory.mktemp("model")
    folder = base / "Tiny"
    folder.mkdir()
    convert(write_gguf(base / "tiny.gguf"), folder, "bfloat16", lambda done, total: None)
    return folder


@pytest.fixture
def model(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "Tiny"))


def _edit(path: Path, **changes: object) -> None:
    config = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (config | changes).items() if v is not ...}))


def _refusal(model: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_model_info(model)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_whole_folder(model: Path) -> None:
    info = read_model_info(model)
    assert info == ModelInfo(
        path=str(model),
        name="Tiny",
        architecture="LlamaForCausalLM",
        model_type="llama",
        vocab_size=300,
        max_model_len=128,
        dtype="bfloat16",
        eos_token_ids=(2,),
        bos_token_id=1,
        config=json.loads((model / "config.json").read_text()),
    )
    assert read_model_info(model, name="served").name == "served"


def test_fallbacks(model: Path) -> None:
    _edit(model / "config.json", max_position_embeddings=..., n_positions=77, dtype=..., eos_token_id=[2, 0])
    (model / "generation_config.json").unlink()
    info = read_model_info(model)
    assert (info.max_model_len, info.dtype, info.eos_token_ids) == (77, "bfloat16", (2, 0))
    _edit(model / "config.json", torch_dtype="float16")
    assert read_model_info(model).dtype == "float16"


def test_generation_config_decides_the_ends(model: Path) -> None:
    _edit(model / "generation_config.json", eos_token_id=[2, 1, 0])
    assert read_model_info(model).eos_token_ids == (2, 1, 0)


def test_no_folder(tmp_path: Path) -> None:
    assert _refusal(tmp_path / "none") == f"there is no model folder {tmp_path / 'none'}"


def test_no_config(model: Path) -> None:
    (model / "config.json").unlink()
    assert _refusal(model) == f"{model} has no config.json"


def test_config_is_no_json(model: Path) -> None:
    (model / "config.json").write_text("{'a': 1}")
    assert _refusal(model).startswith(f"{model / 'config.json'} is not valid JSON: Expecting property name")


@pytest.mark.parametrize("architectures", [..., [], "LlamaForCausalLM", [3]])
def test_no_architecture(model: Path, architectures: object) -> None:
    _edit(model / "config.json", architectures=architectures)
    assert _refusal(model) == f"{model / 'config.json'} names no architecture"


def test_remote_code_is_refused_by_name(model: Path) -> None:
    _edit(model / "config.json", auto_map={"AutoModel": "evil.Model"})
    assert _refusal(model) == f"{model} asks to run code of its own (auto_map in config.json), which is refused"


def test_no_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert (
        _refusal(model)
        == f"{model} has no weights: neither model.safetensors nor model.safetensors.index.json is there"
    )


def test_pickled_weights(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert _refusal(model) == (
        f"{model} has its weights in pytorch_model.bin, which can run code when it is opened; safetensors and GGUF only"
    )


def test_only_a_gguf_inside(model: Path) -> None:
    (model / "model.safetensors").rename(model / "m.gguf")
    assert (
        _refusal(model) == f"{model} has no safetensors; to use its GGUF file, set [model] path to {model / 'm.gguf'}"
    )


@pytest.mark.parametrize("cut", [1, 1000, 100_000])
def test_truncated_weights(model: Path, cut: int) -> None:
    path = model / "model.safetensors"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-cut])
    assert _refusal(model) == (
        f"{path} is truncated: its header promises {size} bytes, the file has {size - cut}. Fetch it again."
    )


def test_truncated_in_the_header(model: Path) -> None:
    path = model / "model.safetensors"
    whole = path.read_bytes()
    promised = 8 + int.from_bytes(whole[:8], "little")
    path.write_bytes(whole[:100])
    assert (
        _refusal(model)
        == f"{path} is truncated: its header promises {promised} bytes, the file has 100. Fetch it again."
    )
    path.write_bytes(whole[:5])
    assert _refusal(model) == f"{path} is truncated: its header needs 8 bytes, the file has 5. Fetch it again."


def test_weights_that_are_something_else(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(b"<!doctype html>" * 50)
    assert _refusal(model) == f"{path} is no safetensors file: its first 8 bytes are not a header's length"
    path.write_bytes((20).to_bytes(8, "little") + b"[" * 20)
    assert _refusal(model) == f"{path} is damaged: its header is not what safetensors asks for. Fetch it again."


def test_missing_shard(model: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert _refusal(model) == (
        f"{model} has no model-00002-of-00002.safetensors, which model.safetensors.index.json names; "
        "fetch the missing file"
    )


def test_a_shard_outside_the_folder(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    assert _refusal(model) == (
        f"{model / 'model.safetensors.index.json'} names '../x.safetensors', "
        "which is no safetensors file of this folder"
    )


def test_missing_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    assert _refusal(model) == (
        f"{model} has no tokenizer.json; fetch it from where the model came from, or set [model] tokenizer"
    )


def test_another_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    assert read_model_info(model, needs_tokenizer=False).name == "Tiny"


@pytest.mark.parametrize("length", [2**31, 10**12])
def test_a_length_that_no_model_has(model: Path, length: int) -> None:
    _edit(model / "config.json", max_position_embeddings=length)
    assert _refusal(model) == (
        f"{model / 'config.json'}: max_position_embeddings is {length}, and a text may have 2147483647 tokens"
    )


def test_words_of_the_config_cannot_break_a_line(model: Path) -> None:
    _edit(model / "config.json", architectures=["Llama\nFor\x1bCausalLM"], dtype="x\ny", model_type="a\nb")
    info = read_model_info(model)
    assert (info.architecture, info.dtype, info.model_type) == ("Llama?For?CausalLM", "x?y", "a?b")


def test_dtype_of_the_weights_when_two_are_as_many(model: Path) -> None:
    """The first of the file, in every process: not as a set happens to order them."""
    _edit(model / "config.json", dtype=...)
    header = {
        name: {"dtype": code, "shape": [4 // size], "data_offsets": [4 * at, 4 * at + 4]}
        for at, (name, code, size) in enumerate((("a", "F32", 4), ("b", "F16", 2), ("c", "BF16", 2)))
    }
    text = json.dumps(header).encode()
    (model / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    assert read_model_info(model).dtype == "float32"


def test_more_layers_than_tensors(model: Path) -> None:
    _edit(model / "config.json", num_hidden_layers=10**6)
    assert _refusal(model) == (
        f"{model / 'config.json'}: num_hidden_layers is 1000000, and the weights are only 20 tensors"
    )


def test_no_length(model: Path) -> None:
    _edit(model / "config.json", max_position_embeddings=None)
    assert _refusal(model) == f"{model / 'config.json'} has no usable max_position_embeddings"


def test_imported_model_reads_the_same(cache: Path, tiny_gguf: Path) -> None:
    assert read_model_info(import_gguf(tiny_gguf)).name == "Tiny-Llama"
