"""Safetensors files: headers read and checked without touching weights, and files written one tensor at a time.

Format: https://huggingface.co/docs/safetensors (8 bytes of length, a JSON header, the bytes of the tensors).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from enginebay.errors import ModelError, one_line
from enginebay.models._files import open_file

_MAX_HEADER = 100_000_000  # the format's own bound
_MAX_DIMS = 32
_ALIGNMENT = 8
_Size = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_SIZES = {"BF16": 2, "F16": 2, "F32": 4}
_BITS = {name: 8 * size for name, size in _SIZES.items()}
_BITS |= dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8)
_BITS |= {"I16": 16, "U16": 16, "I32": 32, "U32": 32, "F64": 64, "I64": 64, "U64": 64}
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
        with open_file(path) as file:
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
        header = msgspec.json.decode(raw.decode("utf-8"), type=dict[str, msgspec.Raw])
        msgspec.json.decode(header.pop("__metadata__", b"null"), type=dict[str, str] | None)
        tensors = {name: _entry(entry) for name, entry in header.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ModelError(f"{path} is damaged: its header is not what safetensors asks for. Fetch it again.") from None
    end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    if 8 + length + end > size:
        raise ModelError(
            f"{path} is truncated: its header promises {8 + length + end} bytes, the file has {size}. Fetch it again."
        )
    if not tensors:
        raise ModelError(f"{path} holds no tensors")
    _check_layout(path, tensors, size - 8 - length)
    return tensors


def _check_layout(path: Path, tensors: Mapping[str, Mapping[str, Any]], total: int) -> None:
    """Every byte belongs to one tensor: in a header that says a name twice, one of its places is left over."""
    end = 0
    for name, entry in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
        if entry["data_offsets"][0] != end:
            raise ModelError(
                one_line(f"{path} is damaged: no tensor, or two, has the bytes before '{name}'. Fetch it again.")
            )
        end = entry["data_offsets"][1]
    if end != total:
        raise ModelError(f"{path} is damaged: {total - end} bytes belong to no tensor. Fetch it again.")


class _Entry(msgspec.Struct):
    """One tensor as the format has it; nothing of another shape takes memory."""

    dtype: str
    shape: Annotated[list[_Size], msgspec.Meta(max_length=_MAX_DIMS)]
    data_offsets: tuple[_Size, _Size]


def _entry(raw: msgspec.Raw) -> dict[str, Any]:
    """One tensor's entry if its parts are what the format says; raises one of the errors of a damaged header."""
    entry = msgspec.json.decode(raw, type=_Entry)
    start, end = entry.data_offsets
    bits = _BITS.get(entry.dtype)
    if start > end or (bits is not None and (end - start) * 8 != prod(entry.shape) * bits):
        raise ValueError(entry)
    return {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [start, end]}
