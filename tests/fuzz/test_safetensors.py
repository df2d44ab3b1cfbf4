"""Safetensors headers: what our own check takes, the library that maps the file takes as well, and the same of it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError, safe_open

from enginebay.errors import ModelError
from enginebay.models._safetensors import read_safetensors_header
from support.fuzzing import SHORT, SOAK, Tally, fuzz, mutate_bytes, mutate_json

DTYPES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U8": 1, "BOOL": 1, "F8_E4M3": 1}
DEPTHS = {
    "length": "first 8 bytes|needs 8 bytes|no tensors",
    "truncated": "is truncated",
    "header": "not what safetensors asks for",
    "layout": "belong to no tensor|has the bytes before",
}


def _valid(chance: random.Random) -> tuple[dict[str, Any], bytes]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}} if chance.random() < 0.5 else {}
    end = 0
    for number in range(chance.randrange(1, 6)):
        dtype = chance.choice(list(DTYPES))
        shape = [chance.randrange(4) for _ in range(chance.randrange(4))]
        size = DTYPES[dtype]
        for dim in shape:
            size *= dim
        if chance.random() < 0.05:  # as if a file had been cut and sewn
            end += chance.choice((4, -4)) if end else 4
        header[f"model.layers.{number}.weight"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return header, bytes(max(0, end))


def _case(chance: random.Random, path: Path) -> str | None:
    header, data = _valid(chance)
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        header = mutate_json(chance, header, pool=("Q4", "F64", [0, 8], [1] * 40, 4, {"a": 1}))
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    act = chance.random()
    if act < 0.2:
        text = mutate_bytes(chance, text)
    elif act < 0.23:
        text = chance.choice((b"[" * 20_000, b'{"a":' * 20_000, b"{}", b"", text * 2))
    raw = len(text).to_bytes(8, "little") + text + data
    if chance.random() < 0.1:
        raw = mutate_bytes(chance, raw, 9)
    path.write_bytes(raw)
    found = read_safetensors_header(path)
    known = {name: entry for name, entry in found.items() if entry["dtype"] in DTYPES}
    if len(known) < len(found):
        return "unknown dtype"  # the runner refuses it by name
    try:
        with safe_open(path, framework="np") as file:
            assert set(file.keys()) == set(found)
            for name, entry in found.items():
                assert file.get_slice(name).get_shape() == entry["shape"]
    except SafetensorError:
        return "library"  # a name that stands there twice, wrong the first time
    return "mapped"


def _run(path: Path, count: int, seed: int) -> Tally:
    return fuzz(
        "safetensors", lambda chance: _case(chance, path), count=count, seed=seed, errors=(ModelError,), depths=DEPTHS
    )


def _check(tally: Tally) -> None:
    for label, least in (("mapped", 0.2), ("header", 0.1), ("truncated", 0.01), ("layout", 0.05), ("length", 0.005)):
        assert tally.share(label) >= least, label
    assert tally.share("library") < 0.002


def test_headers(tmp_path: Path) -> None:
    _check(_run(tmp_path / "m.safetensors", SHORT, 1))


@pytest.mark.soak
def test_many_headers(tmp_path: Path) -> None:
    _check(_run(tmp_path / "m.safetensors", SOAK, 2))
