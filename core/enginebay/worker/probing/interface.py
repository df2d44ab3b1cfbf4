"""The function that transformers calls for each layer's attention, whatever is to be done there.

It is given the attention module; what the caller wants of the call is bound on that module as ``module.eb``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

__all__ = ["PROBING", "Attends", "register", "register_probe"]

PROBING = "enginebay_probing"
"""The name of the function during the probe."""


class Attends(Protocol):
    """What is bound on an attention module."""

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """Query ``[1, heads, T, D]``, key ``[1, kv_heads, T, D]``, value ``[1, kv_heads, T, V]`` →
        ``[1, T, heads, V]``."""


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    bound: Attends = module.eb  # type: ignore[assignment]  # torch types every attribute of a module as a tensor
    return bound.attend(query, key, value, attention_mask, options), None


def register(name: str) -> None:
    """Make the function known to transformers under this name, once or again; no masks are built for it."""
    from transformers import AttentionInterface

    AttentionInterface.register(name, _attention)


def register_probe(build_mask: Callable[..., torch.Tensor]) -> None:
    """The same function under the probe's name, for which masks are asked of ``build_mask``."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(PROBING, _attention)
    AttentionMaskInterface.register(PROBING, build_mask)
