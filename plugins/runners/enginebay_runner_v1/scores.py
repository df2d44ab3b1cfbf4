"""From queries, keys and values to what is attended: the one place where scores become a mixture of values.

A family may cap its scores or add a sink to the softmax; both arrive as options of the call and make a ``ScoreRule``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["ScoreRule", "attend"]


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """How a layer's scores are made. ``softcap``: they are squashed into (-softcap, softcap); ``sinks`` ``[heads]``:
    the score of a column that takes its share of each softmax and holds no value."""

    scale: float
    softcap: float | None = None
    sinks: torch.Tensor | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """From the options of transformers' call."""
        softcap = options.get("softcap")
        return cls(
            scale=float(options["scaling"]),
            softcap=None if softcap is None else float(softcap),
            sinks=options.get("s_aux"),
        )


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, rule: ScoreRule
) -> torch.Tensor:
    """Query ``[..., heads, T, D]`` over key ``[..., kv_heads, S, D]``, value ``[..., kv_heads, S, V]`` →
    ``[..., heads, T, V]``.

    ``mask`` is added to the scores, of a shape that broadcasts to ``[..., 1, T, S]``; None: causal, S = T. Query heads
    that share a KV head see it by a stride of 0, or, with one token each, stand as its rows: nothing is repeated.
    """
    kv_heads, shared = key.shape[-3], query.shape[-3] // key.shape[-3]
    rows, tokens = query.shape[:-3], query.shape[-2]
    if tokens == 1 and mask is not None:
        grouped = query.reshape(*rows, kv_heads, shared, -1)
        sinks = None if rule.sinks is None else rule.sinks.view(kv_heads, shared, 1)
        attended = _attend(grouped, key, value, mask, rule, sinks)
    else:
        grouped = query.reshape(*rows, kv_heads, shared, *query.shape[-2:])
        sinks = None if rule.sinks is None else rule.sinks.view(kv_heads, shared, 1, 1)
        keys, values = (part.unsqueeze(-3).expand(*rows, -1, shared, -1, -1) for part in (key, value))
        attended = _attend(grouped, keys, values, mask, rule, sinks)
    return attended.reshape(*query.shape[:-1], value.shape[-1])


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    rule: ScoreRule,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """As many heads of queries as of keys. Caps and sinks are unknown to torch's own function: then step by step."""
    if rule.softcap is None and sinks is None:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=rule.scale)
    scores = torch.matmul(query, key.transpose(-1, -2)) * rule.scale
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    if mask is None:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    else:
        scores = scores + mask
    if sinks is None:
        shares = torch.softmax(scores, dim=-1, dtype=torch.float32)
    else:
        column = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
        shares = torch.softmax(torch.cat((scores, column), dim=-1), dim=-1, dtype=torch.float32)[..., :-1]
    return torch.matmul(shares.to(value.dtype), value)
