"""Which tokens a random draw chooses among: top-k, then min-p, then top-p, each on what the one before left.

Min-p is of Nguyen et al., "Turning up the heat: min-p sampling for creative and coherent LLM outputs" (2024); the
nucleus (top-p) of Holtzman et al., "The curious case of neural text degeneration" (2019).
"""

from __future__ import annotations

import torch

__all__ = ["best_tokens", "kept_tokens"]

_FIRST_LOOK = 1024
"""How many of the best tokens are looked at first for a nucleus."""


def kept_tokens(scores: torch.Tensor, top_k: int = 0, min_p: float = 0.0, top_p: float = 1.0) -> torch.Tensor:
    """Which ids of the ``[vocab_size]`` scores may be drawn, best first; the largest score is 0.

    Left are the ``top_k`` best (0: all); of these, the ones at least ``min_p`` times as likely as the likeliest; of
    these, the nucleus: the shortest beginning whose share of their probability reaches ``top_p``. The order is a stable
    sort by falling score, so among equal scores lower ids come first. One token is always left.
    """
    size = scores.numel()
    if 0 < top_k < size:
        ids = best_tokens(scores, top_k)
        if min_p > 0:
            ids = ids[scores[ids].exp() >= min_p]
    elif min_p > 0:
        ids = _sorted(scores, (scores.exp() >= min_p).nonzero().squeeze(1))
    elif top_p < 1:
        # a nucleus is mostly far smaller than the vocabulary, and sorting the whole of it costs more than all the rest
        total = scores.exp().sum()
        ids, whole = _nucleus(scores, best_tokens(scores, min(size, _FIRST_LOOK)), total, top_p)
        return ids if whole else _nucleus(scores, best_tokens(scores, size), total, top_p)[0]
    else:
        return best_tokens(scores, size)
    return _nucleus(scores, ids, scores[ids].exp().sum(), top_p)[0] if top_p < 1 else ids


def best_tokens(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The ids of the ``count`` best of the ``[vocab_size]`` scores, best first, among equal ones the lowest id first.

    ``topk`` alone does not break ties, so everything that shares its last score is sorted too.
    """
    if count >= scores.numel():
        return torch.sort(scores, descending=True, stable=True).indices
    least = scores.topk(count).values[-1]
    return _sorted(scores, (scores >= least).nonzero().squeeze(1))[:count]


def _sorted(scores: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rising ids in stable order of falling score."""
    return ids[torch.sort(scores[ids], descending=True, stable=True).indices]


def _nucleus(scores: torch.Tensor, ids: torch.Tensor, total: torch.Tensor, top_p: float) -> tuple[torch.Tensor, bool]:
    """The beginning of ``ids`` that reaches ``top_p`` of ``total``, and whether it was reached."""
    probabilities = scores[ids].exp() / total
    reached = probabilities.cumsum(0)
    keep = int((reached - probabilities < top_p).sum())
    return ids[: max(1, keep)], bool(reached[-1] >= top_p)
