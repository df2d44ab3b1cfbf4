"""Makes the constants of a graph from where they come from: tensors of a state, one below the other, or reckoned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from enginebay.interfaces import Origin, Packed, Parameter, Table

__all__ = ["constant_tensor", "rotary_table"]


def constant_tensor(origin: Origin, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The tensor of a constant. ``state``: the model's weights by its own names, of which those that are asked for are
    there; one alone is given as it is, not copied.
    """
    if isinstance(origin, Parameter):
        return state[origin.name]
    if isinstance(origin, Packed):
        return torch.cat([state[name] for name in origin.names], dim=origin.dim)
    return _reckoned(origin)


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
