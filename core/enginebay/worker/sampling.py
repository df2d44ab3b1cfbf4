"""Draws one token per row of logits: greedy, temperature, top-k, top-p, each row with its own parameters.

A random draw is ``argmax(masked logits / temperature + noise)`` with the keyed noise of ``enginebay.worker.noise``.
Every row is treated alone, so a row's token does not depend on the rest of the batch. Ties go to the lowest token id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from enginebay.messages import SamplingParams
from enginebay.worker.noise import draw_key, gumbel_noise

__all__ = ["Draw", "Drawn", "draw_tokens", "kept_tokens"]

_FIRST_LOOK = 1024
"""How many of the best tokens are looked at first for a nucleus."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row's draw depends on, beside its logits. ``position`` is the index that the token will have."""

    params: SamplingParams
    seed: int = 0
    choice: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token id per row, and what went wrong with the rows that have none (their token is None)."""

    token_ids: list[int | None]
    faults: dict[int, str] = field(default_factory=dict)


def draw_tokens(logits: torch.Tensor, draws: Sequence[Draw]) -> Drawn:
    """Draw a token for each row of ``logits`` ``[len(draws), vocab_size]`` (any float dtype, any device).

    A row without a largest finite logit (NaN, infinite, or nothing left) is a fault of that row alone.
    """
    assert logits.ndim == 2, f"logits have shape {tuple(logits.shape)}"
    assert len(draws) == len(logits), f"{len(draws)} draws for {len(logits)} rows of logits"
    if not draws:
        return Drawn([])
    best = logits.argmax(dim=-1)  # of equal ones the first; a NaN counts as the largest
    peaks = logits.gather(1, best.unsqueeze(1)).squeeze(1).float().tolist()
    tokens: list[int | None] = [*best.tolist()]
    faults: dict[int, str] = {}
    for row, (peak, draw) in enumerate(zip(peaks, draws, strict=True)):
        if not math.isfinite(peak):
            tokens[row] = None
            faults[row] = _fault(peak, draw.position)
        elif draw.params.temperature > 0:
            tokens[row] = _draw_random(logits[row], draw)
    return Drawn(tokens, faults)


def _fault(peak: float, position: int) -> str:
    what = "NaN" if math.isnan(peak) else ("infinite" if peak > 0 else "all minus infinity")
    return f"the model's logits for token {position} are {what}: no token can be drawn"


def _draw_random(logits: torch.Tensor, draw: Draw) -> int:
    params = draw.params
    # in float64 the division, the sum and the noise round so finely that no rounding decides a draw; the largest
    # logit is taken off first, so that a tiny temperature overflows towards -inf only
    scores = logits.double()
    scores = (scores - scores.max()) / params.temperature
    key = draw_key(draw.seed, draw.choice, draw.position)
    if params.top_k <= 0 and params.top_p >= 1.0:
        noise = torch.from_numpy(gumbel_noise(key, scores.numel()))
        return int((scores + noise.to(scores.device)).argmax())
    kept = kept_tokens(scores, params.top_k, params.top_p).sort().values  # by id, so that ties go to the lowest
    noise = torch.from_numpy(gumbel_noise(key, kept.cpu().numpy().astype(np.uint64)))
    return int(kept[(scores[kept] + noise.to(scores.device)).argmax()])


def kept_tokens(scores: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Which ids of the ``[vocab_size]`` scores may be drawn, best first: the ``top_k`` best (0: all), then the nucleus.

    The nucleus is the shortest beginning of the order whose probability reaches ``top_p``. The order is a stable sort
    by falling score, so among equal scores lower ids come first. One token is always left.
    """
    size = scores.numel()
    if 0 < top_k < size:
        ids = _best(scores, top_k)[:top_k]
        total = scores[ids].exp().sum()
        return ids if top_p >= 1.0 else _nucleus(scores, ids, total, top_p)[0]
    if top_p >= 1.0:
        return _best(scores, size)
    # a nucleus is mostly far smaller than the vocabulary, and sorting the whole of it costs more than all the rest
    total = scores.exp().sum()
    ids, whole = _nucleus(scores, _best(scores, min(size, _FIRST_LOOK)), total, top_p)
    return ids if whole else _nucleus(scores, _best(scores, size), total, top_p)[0]


def _best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The ids of at least the ``count`` best scores, in stable order; more when the last score is shared."""
    if count >= scores.numel():
        return torch.sort(scores, descending=True, stable=True).indices
    least = scores.topk(count).values[-1]
    ids = (scores >= least).nonzero().squeeze(1)
    return ids[torch.sort(scores[ids], descending=True, stable=True).indices]


def _nucleus(scores: torch.Tensor, ids: torch.Tensor, total: torch.Tensor, top_p: float) -> tuple[torch.Tensor, bool]:
    """The beginning of ``ids`` that reaches ``top_p`` of ``total``, and whether it was reached."""
    probabilities = scores[ids].exp() / total
    reached = probabilities.cumsum(0)
    keep = int((reached - probabilities < top_p).sum())
    return ids[: max(1, keep)], bool(reached[-1] >= top_p)
