"""GGUF files: header, metadata, tokenizer and places of tensors; one in some cases is converted whole."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest

from enginebay.errors import ModelError, one_line
from enginebay.models._architecture import build_config, place_tensors
from enginebay.models._convert import convert
from enginebay.models._gguf import GgufFile
from enginebay.models._metadata import Metadata
from support.fuzzing import NUMBERS, SHORT, SOAK, TEXTS, Tally, fuzz, mutate_bytes

DEPTHS = {
    "magic": "is no GGUF file|GGUF version",
    "header": "is truncated or damaged|is damaged",
    "type": "has the unknown type",
    "metadata": "metadata key|architecture|heads|mixtures|rope|hidden size",
    "tokenizer": "tokenizer",
    "tensors": "tensor",
}
WHOLE = 20  # one in so many is converted

KINDS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
KEYS: dict[str, tuple[int, Any]] = {
    "general.architecture": (8, "llama"),
    "llama.block_count": (4, 1),
    "llama.context_length": (4, 16),
    "llama.embedding_length": (4, 8),
    "llama.feed_forward_length": (4, 4),
    "llama.attention.head_count": (4, 2),
    "llama.attention.head_count_kv": (4, 1),
    "llama.attention.layer_norm_rms_epsilon": (6, 1e-5),
    "llama.rope.freq_base": (6, 10000.0),
    "tokenizer.ggml.model": (8, "gpt2"),
    "tokenizer.ggml.pre": (8, "smollm"),
    "tokenizer.ggml.tokens": (9, (8, ["<s>", "a", "b", "ab"])),
    "tokenizer.ggml.merges": (9, (8, ["a b"])),
    "tokenizer.ggml.token_type": (9, (5, [3, 1, 1, 1])),
    "tokenizer.ggml.eos_token_id": (4, 0),
    "tokenizer.chat_template": (8, "{{ messages }}"),
}
SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (4, 8),
    "output_norm.weight": (8,),
    "blk.0.attn_norm.weight": (8,),
    "blk.0.attn_q.weight": (8, 8),
    "blk.0.attn_k.weight": (4, 8),
    "blk.0.attn_v.weight": (4, 8),
    "blk.0.attn_output.weight": (8, 8),
    "blk.0.ffn_norm.weight": (8,),
    "blk.0.ffn_gate.weight": (4, 8),
    "blk.0.ffn_up.weight": (4, 8),
    "blk.0.ffn_down.weight": (8, 4),
}


def _text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def _number(code: str, value: Any) -> bytes:
    if code == "?":
        return struct.pack("<?", bool(value))
    if code in "fd":
        try:
            return struct.pack("<" + code, float(value))
        except (OverflowError, ValueError):
            return struct.pack("<" + code, float("inf"))
    size = struct.calcsize("<" + code)
    return (int(value) % (1 << 8 * size)).to_bytes(size, "little")


def _value(kind: int, value: Any) -> bytes:
    if kind == 8:
        return _text(str(value))
    if kind == 9 and isinstance(value, tuple):
        item, values = value
        return struct.pack("<IQ", item, len(values)) + b"".join(_value(item, one) for one in values)
    return _number(KINDS.get(kind, "I"), value)


def _file(chance: random.Random) -> bytes:
    keys, shapes = dict(KEYS), dict(SHAPES)
    kind, version, alignment, tensors = 0, 3, 32, []
    for _ in range(chance.choice((0, 1, 1, 2))):
        act, name = chance.randrange(8), chance.choice(list(keys))
        number, text = chance.choice(NUMBERS), chance.choice(TEXTS)
        if act == 0:
            del keys[name]
        elif act == 1:
            keys[name] = (chance.choice(list(KINDS)), number)
        elif act == 2:
            keys[name] = (keys[name][0], text if keys[name][0] == 8 else (8, [text] * 3) if keys[name][0] == 9 else 7)
        elif act == 3:
            keys[chance.choice(("general.alignment", "llama.rope.scaling.type", "llama.expert_count", text))] = (4, 1)
        elif act == 4:
            keys[name] = (9, (chance.choice((4, 8, 9, 13)), [number, 1]) if name[0] == "l" else (8, [text, "a"]))
        elif act == 5:
            shapes.pop(chance.choice(list(shapes)), None)
        elif act == 6:
            shapes[chance.choice([*shapes, text])] = tuple(abs(int(n)) % 2**64 for n in (number, 2)[: 1 + act % 2])
        else:
            kind, version = chance.choice(((1, 3), (8, 3), (999, 3), (0, 2), (0, 4)))
    at = 0
    infos = []
    for name, shape in shapes.items():
        infos.append(_text(name) + struct.pack("<I", len(shape)))
        infos.append(b"".join(struct.pack("<Q", dim) for dim in reversed(shape)) + struct.pack("<IQ", kind, at))
        size = 4
        for dim in shape:
            size *= dim
        tensors.append(bytes(min(size, 4096)))
        at = min(at - -size // alignment * alignment, 2**63)
        at += -at % alignment
    body = b"".join(_text(key) + struct.pack("<I", kind) + _value(kind, value) for key, (kind, value) in keys.items())
    head = b"GGUF" + struct.pack("<IQQ", version, len(shapes), len(keys)) + body + b"".join(infos)
    head += bytes(-len(head) % alignment)
    data = b"".join(piece + bytes(-len(piece) % alignment) for piece in tensors)
    raw = head + data
    return mutate_bytes(chance, raw, len(head)) if chance.random() < 0.25 else raw


def _case(chance: random.Random, folder: Path) -> str | None:
    path = folder / "m.gguf"
    path.write_bytes(_file(chance))
    if chance.randrange(WHOLE) == 0:
        (folder / "out").mkdir(exist_ok=True)
        convert(path, folder / "out", "float32", lambda done, total: None)
        return "converted"
    try:
        with GgufFile(path) as file:
            meta = Metadata(file)
            place_tensors(meta, build_config(meta, "bfloat16"))
    except ModelError as error:  # the line is made where the conversion ends
        raise ModelError(one_line(str(error))) from error
    return "placed"


def _run(folder: Path, count: int, seed: int) -> Tally:
    return fuzz(
        "gguf", lambda chance: _case(chance, folder), count=count, seed=seed, errors=(ModelError,), depths=DEPTHS
    )


def _check(tally: Tally) -> None:
    shares = {"placed": 0.2, "converted": 0.005, "header": 0.1, "metadata": 0.1, "tensors": 0.02, "magic": 0.005}
    for label, least in shares.items():
        assert tally.share(label) >= least, label


def test_files(tmp_path: Path) -> None:
    _check(_run(tmp_path, SHORT, 1))


@pytest.mark.soak
def test_many_files(tmp_path: Path) -> None:
    _check(_run(tmp_path, SOAK, 2))
