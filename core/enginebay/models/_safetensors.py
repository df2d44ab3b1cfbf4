"""Safetensors files: headers read and checked without touching weights, and files written one tensor at a time.

Format: https://huggingface.co/docs/safetensors (8 bytes of length, a JSON header, the bytes of the tensors).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginebay.errors import ModelError

_MAX_HEADER = 100_000_000  # the format's own bound
_ALIGNMENT = 8
_SIZES = {"BF16": 2, "F16": 2, "F32": 4}
CODES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def write_safetensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str,
    chunks: Iterable[tuple[str, Iterator[NDArray[Any]]]],
) -> None:
    """Write ``path`` in the order of ``shapes``, holding one chunk of one tensor in memory at a time.

    ``chunks`` yields each name with the pieces of its tensor (row-major, of ``dtype``; bfloat16 as its uint16 bits).
    The file is flushed to the disk before this returns.
    """
    code = CODES[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = prod(shape) * _SIZES[code]
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for (name, shape), (given, pieces) in zip(shapes.items(), chunks, strict=True):
            assert name == given, f"{given} came where {name} was due"
            written = 0
            for piece in pieces:
                written += file.write(np.ascontiguousarray(piece).data.cast("B"))
            assert written == prod(shape) * _SIZES[code], f"{name}: {written} bytes written"
        file.flush()
        os.fsync(file.fileno())


def read_safetensors_header(path: Path) -> dict[str, dict[str, Any]]:
    """The file's tensors by name: ``dtype``, ``shape``, ``data_offsets``. Raises ``ModelError`` when damaged."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            head = file.read(8)
            length = int.from_bytes(head, "little")
            if len(head) < 8 or 8 + length > size:
                promised = f"its header promises {8 + length} bytes" if len(head) == 8 else "its header needs 8 bytes"
                if len(head) == 8 and length > _MAX_HEADER:
                    raise ModelError(f"{path} is no safetensors file: its first 8 bytes are not a header's length")
                raise ModelError(f"{path} is truncated: {promised}, the file has {size}. Fetch it again.")
            if length > _MAX_HEADER:
                raise ModelError(f"{path} is no safetensors file: its first 8 bytes are not a header's length")
            raw = file.read(length)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    try:
        header = json.loads(raw.decode("utf-8"))
        tensors = {name: _checked(entry) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelError(f"{path} is damaged: its header is not what safetensors asks for. Fetch it again.") from None
    end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    if 8 + length + end > size:
        raise ModelError(
            f"{path} is truncated: its header promises {8 + length + end} bytes, the file has {size}. Fetch it again."
        )
    if not tensors:
        raise ModelError(f"{path} holds no tensors")
    return tensors


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    """One tensor's entry if its parts are what the format says; raises one of the errors of a damaged header."""
    start, end = entry["data_offsets"]
    numbers = [start, end, *entry["shape"]]
    if not isinstance(entry["dtype"], str) or not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers):
        raise ValueError(entry)
    if start > end:
        raise ValueError(entry)
    return entry
