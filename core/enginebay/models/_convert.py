"""Convert one GGUF file into a folder of safetensors and JSON; run as a child process by ``_child``.

Weights are dequantized a few rows at a time, so the peak of memory does not grow with the model. Run as
``python -P -m enginebay.models._convert REQUEST`` it reports one JSON object a line on stdout.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginebay.errors import ModelError, one_line
from enginebay.limited import die_with_parent, limit_memory
from enginebay.models._architecture import PlacedTensor, build_config, generation_config, place_tensors
from enginebay.models._files import sync, write_json
from enginebay.models._gguf import GgufFile
from enginebay.models._metadata import Metadata
from enginebay.models._safetensors import write_safetensors
from enginebay.models._tokenizer import write_tokenizer

_CHUNK_ELEMENTS = 4 * 1024 * 1024


def convert(path: Path, folder: Path, dtype: str, on_progress: Callable[[int, int], None]) -> None:
    """Write all files of the model into ``folder``, which exists; ``on_progress(done, total)`` counts bytes read.

    ``dtype``: "float32", "bfloat16" or "float16". Raises ``ModelError``.
    """
    try:
        _convert(path, folder, dtype, on_progress)
    except ModelError as error:
        raise ModelError(one_line(str(error))) from error


def _convert(path: Path, folder: Path, dtype: str, on_progress: Callable[[int, int], None]) -> None:
    with GgufFile(path) as file:
        meta = Metadata(file)
        config = build_config(meta, dtype)
        placed = place_tensors(meta, config)
        write_tokenizer(file, folder, config["vocab_size"], config["max_position_embeddings"])
        write_json(folder / "config.json", config)
        write_json(folder / "generation_config.json", generation_config(config))
        total, done = sum(t.source.size for t in placed), 0

        def tensors() -> Iterator[tuple[str, Iterator[NDArray[Any]]]]:
            nonlocal done
            for tensor in placed:
                on_progress(done, total)
                yield tensor.name, _pieces(file, tensor, dtype)
                done += tensor.source.size
            on_progress(done, total)

        shapes = {t.name: t.source.shape for t in placed}
        write_safetensors(folder / "model.safetensors", shapes, dtype, tensors())
        sync(folder / "tokenizer.json")
        sync(folder)


def _pieces(file: GgufFile, tensor: PlacedTensor, dtype: str) -> Iterator[NDArray[Any]]:
    """The tensor's rows in order, dequantized and rounded, some millions of elements at a time."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    source, kind = tensor.source, GGMLQuantizationType[tensor.source.kind]
    heads = tensor.rotary_heads
    if len(source.shape) == 1:  # a vector is as many rows of one element
        values = _float32(dequantize(_typed(file.read(source.start, source.size), source.kind), kind), file, tensor)
        yield _rounded(_deinterleaved(values, heads) if heads else values, dtype, file, tensor)
        return
    rows = source.shape[0]
    row_bytes = source.size // rows
    order = _deinterleaved(np.arange(rows), heads) if heads else None
    step = max(1, _CHUNK_ELEMENTS // source.shape[-1])
    for first in range(0, rows, step):
        last = min(rows, first + step)
        if order is None:
            raw = file.read(source.start + first * row_bytes, (last - first) * row_bytes)
        else:
            raw = np.concatenate([file.read(source.start + row * row_bytes, row_bytes) for row in order[first:last]])
        typed = _typed(raw.reshape(last - first, row_bytes), source.kind)
        yield _rounded(_float32(dequantize(typed, kind), file, tensor), dtype, file, tensor)


def _deinterleaved(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of each head from (a0, b0, a1, b1, …), as llama.cpp rotates them, back to (a0, a1, …, b0, b1, …)."""
    return values.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _typed(raw: NDArray[np.uint8], kind: str) -> NDArray[Any]:
    plain = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}
    return raw.view(plain[kind]) if kind in plain else raw


def _float32(values: NDArray[Any], file: GgufFile, tensor: PlacedTensor) -> NDArray[np.float32]:
    if values.dtype.kind != "f":
        raise ModelError(f"{file.path}: tensor '{tensor.source.name}' of type {tensor.source.kind} holds no weights")
    return values.astype(np.float32, copy=False)


def _rounded(
    values: NDArray[np.float32], dtype: str, file: GgufFile, tensor: PlacedTensor
) -> NDArray[np.float32] | NDArray[np.uint16] | NDArray[np.float16]:
    """The values in ``dtype``, rounded to the nearest, ties to even; bfloat16 as its bits."""
    if dtype == "float32":
        return values
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        rounded[np.isnan(values)] = 0x7FC0
        return rounded
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if np.isinf(half).sum() > np.isinf(values).sum():
        raise ModelError(f"{file.path}: tensor '{tensor.source.name}' is out of float16's range; use bfloat16")
    return half


def main(request: str) -> int:
    """The child: ``request`` is JSON with path, folder, dtype, memory (bytes of address space) and parent (pid)."""
    # the bytes of stdout are the report; whatever else prints goes to stderr
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it kills this process
    asked = json.loads(request)
    die_with_parent(asked["parent"])
    limit_memory(asked["memory"])

    def say(**fields: object) -> None:
        report.write(json.dumps(fields) + "\n")
        report.flush()

    path = Path(asked["path"])
    try:
        convert(path, Path(asked["folder"]), asked["dtype"], lambda done, total: say(done=done, total=total))
    except ModelError as error:
        say(error=str(error))
    except MemoryError:
        say(error=f"converting {path} needs more memory than the {asked['memory'] >> 20} MiB that it may take")
    except OSError as error:
        say(error=f"converting {path} failed: {error.strerror or error}")
    else:
        say(finished=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
