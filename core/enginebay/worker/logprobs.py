"""Log-probabilities of tokens under the model's own distribution, their ranks, and the likeliest tokens beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from enginebay.messages import TokenLogprob
from enginebay.worker.shortlists import Scores, Vocabulary, at_least_best, peaks_of

__all__ = ["host", "in_chunks", "token_logprobs", "unusable"]

_AT_ONCE = 1 << 16
"""Scores that are computed on at one time: what a core's own cache holds of them in float64."""


def host(logits: torch.Tensor, rows: Sequence[int]) -> Scores:
    """These rows, rising, in this process's memory, in single precision at least; perhaps the same memory."""
    if logits.dtype not in (torch.float32, torch.float64) or logits.device.type != "cpu":
        part = logits if len(rows) == len(logits) else logits[list(rows)]
        return (part if part.dtype == torch.float64 else part.float()).detach().cpu().numpy()
    numbers: Scores = logits.detach().numpy()
    neighbours = len(rows) == rows[-1] + 1 - rows[0]
    return numbers[rows[0] : rows[-1] + 1] if neighbours else numbers[list(rows)]


def in_chunks(rows: Sequence[int], width: int) -> Iterator[list[int]]:
    """The rows, as many at a time as are computed on at once."""
    count = max(1, _AT_ONCE // width)
    for begin in range(0, len(rows), count):
        yield list(rows[begin : begin + count])


def token_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], top: int | Sequence[int], rows: Sequence[int] | None = None
) -> list[TokenLogprob]:
    """The entry of one token for each of these rows, rising (None: all), of raw logits ``[n, vocab_size]`` (any float
    dtype, any device), with the ``top`` likeliest ones, of all or of each.

    The log-softmax is taken in float64, row by row, so that it does not depend on the batch. ``rank`` counts from 1;
    among equal logits, in it and in ``top``, lower ids come first.
    """
    wanted = range(len(logits)) if rows is None else rows
    assert len(wanted) == len(token_ids), f"{len(token_ids)} tokens for {len(wanted)} rows of logits"
    tops = iter([top] * len(token_ids) if isinstance(top, int) else top)
    tokens, entries = iter(token_ids), list[TokenLogprob]()
    for chunk in in_chunks(wanted, logits.shape[1]):
        scores = host(logits, chunk)
        peaks = peaks_of(scores)
        highest = peaks.max(axis=1).astype(np.float64)
        weights = scores - highest[:, None]
        totals = highest + np.log(np.exp(weights, out=weights).sum(axis=1))
        for row, among, total in zip(scores, peaks, totals.tolist(), strict=True):
            entries.append(_entry(row, among, total, next(tokens), next(tops)))
    return entries


def _entry(scores: Scores, peaks: Scores, total: float, token_id: int, top: int) -> TokenLogprob:
    own = scores[token_id]
    above = np.count_nonzero(scores > own) + np.count_nonzero(scores[:token_id] == own)
    neighbours: tuple[tuple[int, float], ...] = ()
    if top > 0:
        ids = at_least_best(Vocabulary(scores, peaks), top, float(peaks.max()))
        if len(ids) < min(top, len(scores)):  # tokens that cannot come stand behind those that can
            ids = np.arange(len(scores))
        ids = ids[np.argsort(-scores[ids], kind="stable")[:top]]
        values = scores[ids].astype(np.float64) - total
        neighbours = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprob(token_id=token_id, logprob=float(own) - total, rank=int(above) + 1, top=neighbours)


def unusable(peak: float) -> str | None:
    """What is wrong with logits whose largest value is this one (a NaN counts as the largest), or None."""
    if math.isfinite(peak):
        return None
    return "NaN" if math.isnan(peak) else ("infinite" if peak > 0 else "all minus infinity")
