"""Recognises a gated product: an activation of one tensor times another."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.fx import Node

from enginebay_runner_v2.passes.editing import is_call

__all__ = ["Gate", "gate_of"]

_ATEN = torch.ops.aten


class Gate(NamedTuple):
    """``activation(gate) * up``; the activation is a number of ``ops.ACTIVATIONS``."""

    gate: Node
    up: Node
    activation: int


def gate_of(node: Node) -> Gate | None:
    """The gated product that this call is, or None."""
    if not is_call(node, _ATEN.mul.Tensor):
        return None
    for acted, up in (node.args, reversed(node.args)):
        if isinstance(up, Node) and isinstance(acted, Node) and len(acted.users) == 1:
            activation = _activation(acted)
            if activation is not None and isinstance(gate := acted.args[0], Node):
                return Gate(gate, up, activation)
    return None


def _activation(node: Node) -> int | None:
    if is_call(node, _ATEN.silu.default):
        return 0
    if is_call(node, _ATEN.gelu.default):
        return 1 if node.kwargs.get("approximate", "none") == "tanh" else 2
    return None
