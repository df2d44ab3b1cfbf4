"""What a GGUF file's metadata asks for is converted or refused by name: never dropped, never written as nonsense."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from enginebay.errors import ModelError
from enginebay.models._convert import convert
from enginebay.models._gguf import GgufFile
from support.tiny_gguf import write_gguf


def _convert(path: Path, **changes: Any) -> dict[str, Any]:
    """config.json of a tiny model whose metadata has these changes (dots in the keys)."""
    folder = path / "out"
    folder.mkdir()
    convert(write_gguf(path / "m.gguf", metadata=changes), folder, "float32", lambda done, total: None)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def _refusal(path: Path, **changes: Any) -> str:
    with pytest.raises(ModelError) as caught:
        _convert(path, **changes)
    assert str(caught.value).isprintable()
    return str(caught.value).removeprefix(f"{path / 'm.gguf'}: ")


@pytest.mark.parametrize(
    ("scaling", "factor"),
    [
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.5}, 2.5),
        ({"rope.scaling.factor": 4.0, "rope.scale_linear": 2.0}, 4.0),
        ({"rope.scaling.type": "linear"}, None),
        ({"rope.scaling.factor": 1.0}, None),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
        ({"rope.scaling.type": "none", "rope.scaling.finetuned": True}, None),
    ],
)
def test_rope_scaling_without_a_type_is_linear(
    tmp_path: Path, scaling: dict[str, object], factor: float | None
) -> None:
    config = _convert(tmp_path, **{f"llama.{key}": value for key, value in scaling.items()})
    expected = {"rope_type": "default"} if factor is None else {"rope_type": "linear", "factor": factor}
    assert config["rope_parameters"] == {"rope_theta": 10000.0, **expected}


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("rope.scaling.attn_factor", 0.5, "0.5"),
        ("rope.scaling.yarn_beta_fast", 8.0, "8.0"),
        ("rope.scaling.yarn_log_multiplier", 0.5, "0.5"),
        ("rope.dimension_sections", [1, 2], r"array\(\[1, 2\], dtype=int32\)"),
        ("attention.sliding_window", 16, "16"),
        ("attention.causal", False, "False"),
        ("attention.scale", 0.5, "0.5"),
        ("attention.clamp_kqv", 8.0, "8.0"),
        ("attention.something_new", "x\ny", r"'x\\ny'"),
        ("logit_scale", 0.5, "0.5"),
        ("residual_scale", 2.0, "2.0"),
        ("embedding_scale", 12.0, "12.0"),
        ("new_scale", 1.0, "1.0"),
    ],
)
def test_a_key_that_is_not_converted_is_refused(tmp_path: Path, key: str, value: object, shown: str) -> None:
    import re

    message = _refusal(tmp_path, **{f"llama.{key}": value})
    assert re.fullmatch(rf"the metadata key 'llama\.{re.escape(key)}' \({shown}\) cannot be converted", message)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.attention.causal", True),
        ("llama.attention.sliding_window", 0),
        ("llama.logit_scale", 1.0),
        ("llama.rope.scaling.attn_factor", 1.0),
        ("qwen2.rope.scaling.attn_factor", 0.5),
        ("general.file_type", 7),
    ],
)
def test_a_key_that_changes_nothing_is_passed_over(tmp_path: Path, key: str, value: object) -> None:
    assert _convert(tmp_path, **{key: value})["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}


@pytest.mark.parametrize(
    "key",
    [
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "block_count",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
    ],
)
def test_sizes_begin_at_one(tmp_path: Path, key: str) -> None:
    assert _refusal(tmp_path, **{f"llama.{key}": 0}) == f"the metadata key 'llama.{key}' cannot be 0"


def test_sizes_end(tmp_path: Path) -> None:
    assert _refusal(tmp_path, **{"llama.context_length": 2**31}) == (
        "the metadata key 'llama.context_length' cannot be 2147483648"
    )


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("key", ["rope.freq_base", "attention.layer_norm_rms_epsilon", "rope.scaling.factor"])
def test_numbers_are_finite_and_above_zero(tmp_path: Path, key: str, value: float) -> None:
    assert _refusal(tmp_path, **{f"llama.{key}": value}) == f"the metadata key 'llama.{key}' cannot be {value!r}"


@pytest.mark.parametrize("role", ["bos", "eos", "eot", "eom"])
@pytest.mark.parametrize("value", [-1, 290, 300, 4_000_000_000, True])
def test_token_ids_are_in_the_vocabulary(tmp_path: Path, role: str, value: int) -> None:
    """290 is an embedding without a token: no text can end with it."""
    last = 289 if value == 290 else 299
    assert _refusal(tmp_path, **{f"tokenizer.ggml.{role}_token_id": value}) == (
        f"the metadata key 'tokenizer.ggml.{role}_token_id' is {value!r}, and ids go from 0 to {last}"
    )


@pytest.mark.parametrize("value", [-1, 300, 4_294_967_295])
def test_padding_outside_the_vocabulary_is_none(tmp_path: Path, value: int) -> None:
    assert "pad_token_id" not in _convert(tmp_path, **{"tokenizer.ggml.padding_token_id": value})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokenizer.ggml.token_type", 5, "the tokenizer is damaged: 'tokenizer.ggml.token_type' is no list of numbers"),
        ("tokenizer.ggml.token_type", ["a"], "the tokenizer is damaged: 'tokenizer.ggml.token_type' is no list of num"),
        ("tokenizer.ggml.pre", ["a", "b"], "the pre-tokenizer '['a', 'b']' is not known, and another one would"),
        ("tokenizer.ggml.pre", [1, 2], "the pre-tokenizer '[1 2]' is not known, and another one would give"),
        ("tokenizer.ggml.model", [1, 2], "tokenizers of kind '[1 2]' cannot be rebuilt from a GGUF file, only"),
        ("tokenizer.ggml.tokens", 5, "the tokenizer is missing: 'tokenizer.ggml.tokens' or "),
        ("llama.attention.head_count_kv", [2, 2], "the metadata key 'llama.attention.head_count_kv' cannot be array("),
    ],
)
def test_values_of_another_kind(tmp_path: Path, key: str, value: object, message: str) -> None:
    assert _refusal(tmp_path, **{key: value}).startswith(message)


def _move(path: Path, name: str, offset: int) -> None:
    """Let the tensor ``name`` begin ``offset`` bytes after the first one, with room behind the last."""
    data = bytearray(path.read_bytes())
    at = data.find(name.encode()) + len(name)
    (dims,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<Q", data, at + 4 + 8 * dims + 4, offset)
    path.write_bytes(bytes(data) + bytes(1 << 17))


def test_tensors_that_overlap(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    with GgufFile(path) as file:
        first = min(tensor.start for tensor in file.tensors.values())
        k = file.tensors["blk.0.attn_k.weight"]
    for offset in (k.start - first, k.start - first + 32, k.start - first + k.size - 32):
        changed = write_gguf(tmp_path / "m.gguf")
        _move(changed, "blk.0.attn_v.weight", offset)
        with pytest.raises(ModelError) as caught:
            GgufFile(changed)
        assert str(caught.value) in [
            f"{path} is damaged: tensors 'blk.0.attn_{one}.weight' and 'blk.0.attn_{other}.weight' overlap. "
            "Fetch the file again."
            for one, other in (("k", "v"), ("v", "k"), ("v", "output"))
        ]


def test_tensors_that_are_not_aligned(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    _move(path, "blk.0.attn_v.weight", 8)
    with pytest.raises(ModelError) as caught:
        GgufFile(path)
    assert str(caught.value) == (
        f"{path} is damaged: tensor 'blk.0.attn_v.weight' begins at 8, which is no multiple of 32. "
        "Fetch the file again."
    )
