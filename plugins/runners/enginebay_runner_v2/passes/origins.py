"""Makes the constants of a graph from where they come from: tensors of a state, one below the other, or reckoned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from enginebay.interfaces import Origin, Packed, Parameter, Ranges, Table
from enginebay.worker.parallel.cuts import Cut

__all__ = ["constant_tensor", "cuts_of", "own_part", "rotary_table", "uncut"]


def constant_tensor(origin: Origin, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The tensor of a constant. ``state``: the model's weights by its own names, of which those that are asked for are
    there, whole; one alone is given as it is, not copied, and rows of it are where they are.
    """
    if isinstance(origin, Parameter):
        return own_part(state[origin.name], origin.dim, origin.ranges)
    if isinstance(origin, Packed):
        ranges = origin.ranges or ((),) * len(origin.names)
        parts = [own_part(state[name], origin.dim, own) for name, own in zip(origin.names, ranges, strict=True)]
        return torch.cat(parts, dim=origin.dim)
    return _reckoned(origin)


def own_part(whole: torch.Tensor, dim: int, ranges: Ranges) -> torch.Tensor:
    """These indexes of a dimension; no ranges: all."""
    return Cut(dim, tuple(range(*one) for one in ranges)).take(whole) if ranges else whole


def cuts_of(origin: Origin) -> Mapping[str, tuple[int, Ranges]]:
    """Of each weight that the constant is made of: the dimension that is cut, and the indexes that are taken."""
    match origin:
        case Parameter(name=name, dim=dim, ranges=ranges):
            return {name: (dim, ranges)}
        case Packed(names=names, dim=dim, ranges=parts):
            return {name: (dim, ranges) for name, ranges in zip(names, parts or ((),) * len(names), strict=True)}
    return {}


def uncut(origin: Origin) -> Origin:
    """The same of weights of which parts alone are there."""
    match origin:
        case Parameter():
            return replace(origin, ranges=())
        case Packed():
            return replace(origin, ranges=())
    return origin


def _reckoned(table: Table) -> torch.Tensor:
    settings: Mapping[str, Any] = table.settings
    if table.kind == "rotary":
        frequencies = torch.tensor(settings["frequencies"], dtype=torch.float32)
        return rotary_table(frequencies, settings["scale"], settings["positions"])
    if table.kind == "values":
        dtype: torch.dtype = getattr(torch, settings["dtype"])
        return torch.tensor(settings["values"], dtype=dtype).view(settings["shape"])
    raise ValueError(f"no table is of kind '{table.kind}'; there are rotary and values")


def rotary_table(frequencies: torch.Tensor, scale: float, positions: int) -> torch.Tensor:
    """``[positions, 2 n]`` float32 for ``n`` frequencies: cosines of position times frequency, then sines, scaled."""
    angles = torch.arange(positions, dtype=torch.float32).unsqueeze(1) * frequencies
    return torch.cat((angles.cos() * scale, angles.sin() * scale), dim=1)
