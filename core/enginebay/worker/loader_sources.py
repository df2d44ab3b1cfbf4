"""Where weights come from, and which part of them a rank takes; tensors that a program gave, piece by piece."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from enginebay.errors import ModelError, one_line
from enginebay.messages import TensorPiece
from enginebay.worker.names import Place

__all__ = ["GivenWeights", "WeightSource", "Whole", "WorldPart"]

_CODES: Final = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_MAX_TENSORS: Final = 1_000_000
_MAX_DIMS: Final = 8


class WeightSource(Protocol):
    """Where the weights are, under the names of the checkpoint. ``place`` is for messages."""

    place: Path

    def headers(self) -> Mapping[str, Mapping[str, Any]]:
        """Each tensor's ``dtype`` and ``shape``, as safetensors writes them. Raises ``ModelError``."""

    def tensors(
        self, wanted: Callable[[str], bool], passing: Callable[[str], bool]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors, as ``map_tensors`` gives them."""


class WorldPart(Protocol):
    """Which part of a model one rank loads; asked by ``load_causal_lm`` in the order of its methods."""

    def prepare(self, model: Any) -> None:
        """Make the model, which is whole and on the meta device, this rank's part. The file fits the whole one."""

    def keeps(self, name: str) -> bool:
        """Whether the rank has any of the module's weight ``name``."""

    def copies(self, place: Place) -> bool:
        """Whether the rank's part of it has to be a copy, since it is scattered over the whole."""

    def cut(self, place: Place, whole: torch.Tensor, own_rows: int) -> torch.Tensor:
        """The part of a weight as the file has it. ``own_rows``: of an expert's stack, the rows of the whole one."""


class Whole:
    """The part of a rank that is alone: everything."""

    def prepare(self, model: Any) -> None:
        """Nothing to do."""

    def keeps(self, name: str) -> bool:
        """It does."""
        return True

    def copies(self, place: Place) -> bool:
        """It need not be."""
        return False

    def cut(self, place: Place, whole: torch.Tensor, own_rows: int) -> torch.Tensor:
        """All of it."""
        return whole


class GivenWeights:
    """Tensors in host memory, put together from pieces: a ``WeightSource`` for ``load_causal_lm``.

    ``room`` is how many bytes they may take, so that pieces of nothing that fits are refused before memory is taken.
    """

    def __init__(self, room: int) -> None:
        self.place = Path("the weights that were given")
        self._room = room
        self._whole: dict[str, torch.Tensor] = {}
        self._begun: dict[str, int] = {}
        self._dtypes: dict[str, str] = {}

    def put(self, piece: TensorPiece) -> None:
        """Take one piece. Raises ``ModelError`` for one that does not follow those before it."""
        name = one_line(piece.name, 200)
        if piece.dtype not in _CODES or len(piece.shape) > _MAX_DIMS or any(size < 0 for size in piece.shape):
            raise ModelError(
                f"{name} is given as {piece.dtype[:40]} {list(piece.shape[:_MAX_DIMS])}: no tensor of floats"
            )
        dtype: torch.dtype = getattr(torch, piece.dtype)
        size = math.prod(piece.shape) * dtype.itemsize
        if piece.offset == 0 and piece.name not in self._whole:
            if size > self._room or len(self._whole) >= _MAX_TENSORS:
                raise ModelError(f"{name} has {size} bytes, more than is left of the model's weights")
            self._room -= size
            self._whole[piece.name] = torch.empty(piece.shape, dtype=dtype)
            self._begun[piece.name] = 0
            self._dtypes[piece.name] = piece.dtype
        whole = self._whole.get(piece.name)
        if whole is None or tuple(whole.shape) != piece.shape or self._dtypes[piece.name] != piece.dtype:
            raise ModelError(f"a piece of {name} does not belong to what was given of it before")
        done = self._begun[piece.name]
        if piece.offset != done or done + len(piece.data) > size:
            raise ModelError(
                f"{name} has {size} bytes, of which {done} were given; a piece came for byte {piece.offset}"
            )
        if piece.data:
            flat = whole.reshape(-1).view(torch.uint8)
            flat[done : done + len(piece.data)] = torch.frombuffer(bytearray(piece.data), dtype=torch.uint8)
        self._begun[piece.name] = done + len(piece.data)

    def headers(self) -> Mapping[str, dict[str, Any]]:
        """Name → dtype and shape, as a safetensors file's. Raises ``ModelError`` when a tensor is not whole."""
        for name, tensor in self._whole.items():
            size = tensor.numel() * tensor.element_size()
            if self._begun[name] != size:
                raise ModelError(f"{one_line(name, 200)} was given in part: {self._begun[name]} of {size} bytes")
        return {
            name: {"dtype": _CODES[self._dtypes[name]], "shape": list(tensor.shape)}
            for name, tensor in self._whole.items()
        }

    def tensors(
        self, wanted: Callable[[str], bool], passing: Callable[[str], bool]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Each wanted tensor; all are in memory already."""
        return ((name, tensor) for name, tensor in self._whole.items() if wanted(name))
