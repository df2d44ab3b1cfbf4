"""Log-probabilities of tokens under the model's own distribution, their ranks, and the likeliest tokens beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from enginebay.messages import TokenLogprob
from enginebay.worker.filters import best_tokens

__all__ = ["token_logprob", "token_logprobs", "unusable"]


def token_logprob(logits: torch.Tensor, token_id: int, top: int) -> TokenLogprob:
    """One token's entry, of raw logits ``[vocab_size]`` (any float dtype), with the ``top`` likeliest ones.

    The log-softmax is taken in float64, row by row, so that it does not depend on the batch. ``rank`` counts from 1;
    among equal logits, in it and in ``top``, lower ids come first.
    """
    exact = logits.double()
    own = exact[token_id]
    total = exact.logsumexp(0)
    above = (exact > own).sum() + (exact[:token_id] == own).sum()
    best = best_tokens(exact, top) if top > 0 else exact.new_empty(0, dtype=torch.int64)
    values = (exact[best] - total).tolist()
    return TokenLogprob(
        token_id=token_id,
        logprob=float(own - total),
        rank=int(above) + 1,
        top=tuple(zip(best.tolist(), values, strict=True)),
    )


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprob]:
    """``token_logprob`` of each row of ``logits`` ``[len(token_ids), vocab_size]``."""
    assert len(logits) == len(token_ids), f"{len(token_ids)} tokens for {len(logits)} rows of logits"
    return [token_logprob(row, token, top) for row, token in zip(logits, token_ids, strict=True)]


def unusable(peak: float) -> str | None:
    """What is wrong with logits whose largest value is this one (a NaN counts as the largest), or None."""
    if math.isfinite(peak):
        return None
    return "NaN" if math.isnan(peak) else ("infinite" if peak > 0 else "all minus infinity")
