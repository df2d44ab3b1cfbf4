"""Which tokens a random draw chooses among: top-k, then min-p, then top-p, each on what the one before left.

Min-p is of Nguyen et al., "Turning up the heat: min-p sampling for creative and coherent LLM outputs" (2024); the
nucleus (top-p) of Holtzman et al., "The curious case of neural text degeneration" (2019).

Everything here works on the few tokens of each row that ``shortlists`` found, rows padded to one length. Nothing in a
row is computed from another one or from the padding, so a row's result depends on the row alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["NOBODY", "Floats", "Ids", "best_first", "kept_tokens"]

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

NOBODY = -1
"""The id of the padding; its score is minus infinity."""


def best_first(scores: Floats, ids: Ids) -> tuple[Floats, Ids]:
    """Scores and ids ``[rows, n]``, the ids of each row rising, in stable order of falling score."""
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1)


def kept_tokens(scores: Floats, ids: Ids, top_k: Ids, min_p: Floats, top_p: Floats, totals: Floats) -> Ids:
    """How many of each row's tokens, ``best_first``, may be drawn; ``scores`` ``[rows, n]``, the largest of a row is 0.

    Left are the ``top_k`` best (0: all); of these, the ones at least ``min_p`` times as likely as the likeliest; of
    these, the nucleus: the shortest beginning whose share of their probability reaches ``top_p``. One token is always
    left. ``totals`` are the sums of ``exp(score)`` that shares are of; NaN: of what the other two filters left.
    """
    left = (ids != NOBODY).sum(axis=1)
    left = np.where(top_k > 0, np.minimum(left, top_k), left)
    rank = np.arange(scores.shape[1])
    weights = np.where(rank < left[:, None], np.exp(scores), 0.0)
    likely = ((weights >= min_p[:, None]) & (rank < left[:, None])).sum(axis=1)
    left = np.where(min_p > 0, likely, left)
    if not (top_p < 1).any():
        return _one_at_least(left)
    weights[rank >= left[:, None]] = 0.0
    own = weights.cumsum(axis=1)[:, -1]  # one after the other, so that padding changes nothing
    shares = weights / np.where(np.isnan(totals), own, totals)[:, None]
    outside = shares.cumsum(axis=1) - shares >= top_p[:, None]
    nucleus = ((rank < left[:, None]) & ~outside).sum(axis=1)
    return _one_at_least(np.where(top_p < 1, nucleus, left))


def _one_at_least(counts: Ids) -> Ids:
    return np.maximum(counts, 1, dtype=np.int64)
