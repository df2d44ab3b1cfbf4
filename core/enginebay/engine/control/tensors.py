"""Other weights given as tensors by a program in the engine's own process: commands in chunks, and how chunks are cut.

They are no part of ``Control``: weights do not cross sockets.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec import Struct

from enginebay.engine.lending import Lender
from enginebay.errors import InvalidRequest
from enginebay.messages import Control, TensorPiece, WeightsChunk

__all__ = [
    "AbortTensors",
    "ChunkOfTensors",
    "Command",
    "FinishTensors",
    "RestartFrom",
    "StartTensors",
    "chunks_of",
    "new_update",
]

_CHUNK_BYTES: Final = 32 * 1024 * 1024
"""Bytes of tensors in one message: far below what a frame may have, and far above what a message costs."""
_DTYPES: Final = ("float32", "bfloat16", "float16")
_UPDATES: Final = itertools.count(1)


def new_update() -> int:
    """The number of an update: what belongs to one that was given up does nothing to the next."""
    return next(_UPDATES)


class StartTensors(Struct, frozen=True, kw_only=True, tag="start_tensors"):
    """Weights will come in chunks; what follows for them has the same ``update``, of ``new_update``."""

    update: int


class ChunkOfTensors(Struct, frozen=True, kw_only=True, tag="chunk_of_tensors"):
    """Some of them, for these ranks; None: for all."""

    update: int
    chunk: WeightsChunk
    ranks: tuple[int, ...] | None = None


class FinishTensors(Struct, frozen=True, kw_only=True, tag="finish_tensors"):
    """They are in force from here on."""

    update: int
    version: str = ""


class AbortTensors(Struct, frozen=True, kw_only=True, tag="abort_tensors"):
    """Forget them; nothing happens once they are in force, or when it is another update that runs."""

    update: int


class RestartFrom(Struct, frozen=True, kw_only=True, tag="restart_workers"):
    """``RestartWorkers`` for one group, with another of this engine that may lend its weights."""

    lender: Lender | None


Command = Control | StartTensors | ChunkOfTensors | FinishTensors | AbortTensors | RestartFrom
"""What an engine in this process can be asked beside requests."""


def chunks_of(tensors: Iterable[tuple[str, Any]], chunk_bytes: int = _CHUNK_BYTES) -> Iterator[WeightsChunk]:
    """The tensors, of torch or numpy, in messages of about ``chunk_bytes``; a large one is cut, small ones share one.

    Each is read when its turn comes, one at a time. Raises ``InvalidRequest`` for what is no named tensor of floats.
    """
    pieces: list[TensorPiece] = []
    size = 0
    for given in tensors:
        name, dtype, shape, data = _bytes_of(given)
        for offset in range(0, max(1, len(data)), chunk_bytes):
            part = data[offset : offset + chunk_bytes]
            if pieces and size + len(part) > chunk_bytes:
                yield WeightsChunk(pieces=tuple(pieces))
                pieces, size = [], 0
            pieces.append(TensorPiece(name=name, dtype=dtype, shape=shape, data=bytes(part), offset=offset))
            size += len(part)
    if pieces:
        yield WeightsChunk(pieces=tuple(pieces))


def _bytes_of(given: object) -> tuple[str, str, tuple[int, ...], memoryview]:
    """(name, dtype, shape, bytes) of one tensor."""
    if not isinstance(given, tuple | list) or len(given) != 2 or not isinstance(given[0], str):
        raise InvalidRequest(f"tensors are pairs of a name and a tensor, not {type(given).__name__}", param="tensors")
    name, tensor = given
    shape, dtype = getattr(tensor, "shape", None), str(getattr(tensor, "dtype", "")).removeprefix("torch.")
    if shape is None or dtype not in _DTYPES:
        raise InvalidRequest(
            f"{name} is {type(tensor).__name__} of dtype '{dtype or 'none'}': a tensor of torch or numpy of "
            f"{', '.join(_DTYPES)} is needed",
            param="tensors",
        )
    import numpy as np

    if hasattr(tensor, "detach"):
        torch = sys.modules["torch"]  # whoever has one of its tensors has imported it
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    else:
        flat = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
    return name, dtype, tuple(int(size) for size in shape), flat.data
