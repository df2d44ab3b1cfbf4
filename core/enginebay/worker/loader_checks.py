"""What must be true of a file's weights before they become a model's, told in one line where it is not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from enginebay.errors import ModelError
from enginebay.models import one_line
from enginebay.worker.names import Place

__all__ = ["check_dtypes", "check_shapes", "drop_tied_copies", "some"]

_DTYPES = ("BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2")
"""What safetensors calls the types that hold weights as they are; others need a rule to become numbers."""


def check_dtypes(folder: Path, headers: Mapping[str, Mapping[str, Any]]) -> None:
    odd = [f"{name} is {entry['dtype']}" for name, entry in headers.items() if entry["dtype"] not in _DTYPES]
    if odd:
        raise ModelError(
            one_line(f"{folder}: {len(odd)} weights are of a dtype that is not floating-point: {some(odd)}")
        )


def check_shapes(
    folder: Path,
    own: Mapping[str, tuple[int, ...]],
    places: Mapping[str, Place | None],
    headers: Mapping[str, Mapping[str, Any]],
) -> None:
    wanted = {name: place.shape(own[place.name]) for name, place in places.items() if place is not None}
    odd = [
        f"{name} is {entry['shape']} instead of {wanted[name]}"
        for name, entry in headers.items()
        if name in wanted and entry["shape"] != wanted[name]
    ]
    if odd:
        raise ModelError(one_line(f"{folder}: the weights do not fit config.json: {some(odd)}"))


def drop_tied_copies(tied: Mapping[str, str], state: dict[str, torch.Tensor], folder: Path) -> None:
    """Of two weights that are tied (copy → source) one is kept, under the source's name; if there are both, they are
    equal."""
    for copy, source in tied.items():
        if copy in state and source not in state:
            state[source] = state.pop(copy)
        elif copy in state:
            if not _same(state[copy], state[source]):
                raise ModelError(f"{folder}: config.json ties {copy} to {source}, but the file has two different ones")
            del state[copy]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal numbers, or equal bits: NaN is no number, and a copy of it is a copy all the same."""
    if torch.equal(one, other):
        return True
    one, other = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(one, other)


def some(names: list[str], limit: int = 3) -> str:
    shown = ", ".join(names[:limit])
    return f"{shown}, …" if len(names) > limit else shown
