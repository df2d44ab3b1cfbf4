"""Damaged, truncated and hostile GGUF files: one clear line each, never another exception, never a hang."""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.errors import ModelError
from enginebay.models._convert import convert
from enginebay.models._gguf import GgufFile
from support.tiny_gguf import write_gguf


def _convert(path: Path) -> None:
    folder = path.parent / "out"
    folder.mkdir(exist_ok=True)
    convert(path, folder, "bfloat16", lambda done, total: None)


def _header_end(path: Path) -> int:
    with GgufFile(path) as file:
        return min(t.start for t in file.tensors.values())


def test_reads_metadata_and_tensors(tiny_gguf: Path) -> None:
    with GgufFile(tiny_gguf) as file:
        assert file.metadata["general.architecture"] == "llama"
        assert file.metadata["tokenizer.ggml.tokens"][:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        assert file.tensors["token_embd.weight"].shape == (300, 64)
        assert file.tensors["token_embd.weight"].kind == "Q8_0"


@given(data=st.data())
def test_truncated_anywhere_is_one_clear_error(
    tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = tiny_gguf.read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    path = tmp_path_factory.getbasetemp() / "cut.gguf"
    path.write_bytes(whole[:cut])
    with pytest.raises(ModelError) as caught:
        _convert(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_truncated_data_names_the_tensor(tiny_gguf: Path, tmp_path: Path) -> None:
    whole = tiny_gguf.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:-100])
    with pytest.raises(ModelError) as caught:
        GgufFile(path)
    assert re.fullmatch(
        rf"{path} is truncated or damaged: tensor 'blk\.1\.\w+\.weight' needs the bytes \d+ to \d+, and the file has "
        rf"{len(whole) - 100}\. Fetch the file again\.",
        str(caught.value),
    )


def test_truncated_header_says_where(tiny_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_gguf.read_bytes()[:60])
    with pytest.raises(ModelError, match=r"is truncated or damaged: .*\. Fetch the file again\."):
        GgufFile(path)


def test_flipped_bytes_in_the_header_never_raise_anything_else(tiny_gguf: Path, tmp_path: Path) -> None:
    whole, end = tiny_gguf.read_bytes(), _header_end(tiny_gguf)
    chance = random.Random(7)
    path = tmp_path / "flipped.gguf"
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 8))):
            damaged[chance.randrange(end)] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        path.write_bytes(damaged)
        try:
            _convert(path)
        except ModelError as error:
            assert "\n" not in str(error)  # noqa: PT017  # most flips only change a name's letter
            refused += 1
    assert refused > 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no GGUF file: it has only 0 bytes"),
        (b"PK\x03\x04" + bytes(100), "is no GGUF file: it begins with b'PK\\x03\\x04' instead of b'GGUF'"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), ": GGUF version 9 is not supported, only 2 and 3, little-endian"),
        (
            b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
            ": GGUF version 50331648 (a big-endian file) is not supported, only 2 and 3, little-endian",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1),
            f" is truncated or damaged: {2**60} tensors and 1 metadata keys do not fit into it. Fetch the file again.",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62) + bytes(16),
            f" is truncated or damaged: a metadata key promises {2**62} bytes, and 16 are left. Fetch the file again.",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 8, 1 << 61),
            f" is truncated or damaged: 'k' promises {1 << 61} strings, and 0 bytes are left. Fetch the file again.",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 0, 1 << 61),
            f" is truncated or damaged: 'k' promises {1 << 61} values, and 0 bytes are left. Fetch the file again.",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 9, 1),
            " is damaged: metadata key 'k' is a list of the unknown type 9. Fetch the file again.",
        ),
    ],
)
def test_hostile_headers(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        GgufFile(path)
    separator = "" if message.startswith(":") else " " if not message.startswith(" ") else ""
    assert str(caught.value) == f"{path}{separator}{message}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "mamba"}, ": architecture 'mamba' cannot be converted; known: llama, qwen2, qwen3"),
        (
            {"metadata": {"tokenizer.ggml.pre": "viking"}},
            ": the pre-tokenizer 'viking' is not known, and another one would give wrong ids; known: codeshell, ",
        ),
        (
            {"metadata": {"tokenizer.ggml.model": "llama"}},
            ": tokenizers of kind 'llama' cannot be rebuilt from a GGUF file, only 'gpt2' (byte-level BPE); ",
        ),
        (
            {"without": frozenset({"tokenizer.ggml.tokens"})},
            ": the tokenizer is missing: 'tokenizer.ggml.tokens' or 'tokenizer.ggml.merges' is not there",
        ),
        ({"without": frozenset({"blk.1.attn_v.weight"})}, ": tensor 'blk.1.attn_v.weight' is missing"),
        ({"without": frozenset({"llama.block_count"})}, ": the metadata key 'llama.block_count' is missing"),
        ({"metadata": {"llama.block_count": 1}}, ": tensor 'blk.1.attn_k.weight' has no place in LlamaForCausalLM"),
        ({"metadata": {"llama.block_count": 2**31}}, ": 20 tensors cannot make 2147483648 layers"),
        (
            {"metadata": {"llama.feed_forward_length": 95}},
            ": tensor 'blk.0.ffn_gate.weight' has the shape [96, 64], the metadata asks for [95, 64]",
        ),
        (
            {"metadata": {"llama.expert_count": 8}},
            ": mixtures of experts cannot be converted; use a folder of safetensors",
        ),
        (
            {"metadata": {"llama.rope.dimension_count": 8}},
            ": heads of 16 with 8 rotary dimensions cannot be converted",
        ),
        (
            {"metadata": {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}},
            ": rope scaling 'longrope' cannot be converted; known: linear, none, yarn",
        ),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = write_gguf(tmp_path / "odd.gguf", **changes)  # type: ignore[arg-type]  # the table holds keyword arguments
    with pytest.raises(ModelError) as caught:
        _convert(path)
    assert str(caught.value).startswith(f"{path}{message}")
