"""What mask transformers would build for each layer, found out at load: paged attention builds none of its own accord.

During the probe a mask function is registered. It keeps the rule that it is given and answers a tensor that carries
the rule's number, so that each layer shows by what it receives which rule holds for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from enginebay.errors import ModelError

__all__ = ["MaskRules"]

_FIRST = 1000
"""The number of the first rule: none of the values that a mask of a model's own is made of."""
_FAR = 4096
"""A position to look at where the config names no length."""


@dataclass(slots=True)
class MaskRules:
    """The rules met in one forward: whether a token sees another, and how far back where the rule says so."""

    rules: list[tuple[Callable[..., Any], int | None]] = field(default_factory=list)

    def add(
        self,
        *,
        q_length: int,
        kv_length: int,
        mask_function: Callable[..., Any],
        device: torch.device,
        local_size: int | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """In place of transformers' own functions that build masks; its arguments are theirs."""
        self.rules.append((mask_function, local_size))
        return torch.full((1, 1, q_length, kv_length), _FIRST + len(self.rules) - 1, device=device)

    def window(self, mask: torch.Tensor | None, length: int | None) -> int | None:
        """How many tokens a layer that is given this mask sees, the own included; None: all before it.

        ``length``: the longest text of the model. Raises ``ModelError`` when the rule is neither causal nor a window.
        """
        number = -1 if mask is None else int(mask.flatten()[0].item()) - _FIRST
        if mask is None or number not in range(len(self.rules)) or not torch.all(mask == number + _FIRST):
            raise ModelError("attends with a mask of its own, which paged attention does not have")
        rule, window = self.rules[number]
        if window is not None and (type(window) is not int or window < 2):
            raise ModelError(
                f"has a window of {window!r}, and it must be 2 or more, or null: "
                "with 1 transformers' own cache keeps every token"
            )
        if not _is_causal(rule, window, max(length or _FAR, 4)):
            raise ModelError(
                f"sees other tokens than {'all' if window is None else f'the last {window}'} up to its own: "
                "chunks, or both directions"
            )
        return window


def _is_causal(rule: Callable[..., Any], window: int | None, length: int) -> bool:
    """The rule lets a token see itself and the tokens before it, within the window, and no others.

    Looked at where that can differ: at both ends of the text, of the window, and of multiples of it.
    """
    near = {0, 1, 2, 3, length // 2, length - 2, length - 1}
    if window is not None:
        near |= {window * i + j for i in (1, 2, 3) for j in (-1, 0, 1)}
    own = torch.tensor(sorted(position for position in near if 0 <= position < length)).view(-1, 1)
    back = torch.tensor(sorted({-1, 0, 1, 2} | ({window - 1, window, window + 1} if window is not None else set())))
    seen = torch.cat([own - back, torch.zeros_like(own)], dim=1).clamp_(min=0)
    expected = seen <= own
    if window is not None:
        expected &= seen > own - window
    zero = torch.zeros((), dtype=torch.int64)
    return all(
        bool(torch.as_tensor(rule(zero, zero, q, k)).all()) == bool(e)
        for qs, ks, es in zip(own.expand_as(seen), seen, expected, strict=True)
        for q, k, e in zip(qs, ks, es, strict=True)
    )
