"""Random draws: ``argmax(scores / temperature + noise)`` among what the filters left, for many rows at once.

First each row's vocabulary is gone through for its shortlist, then the shortlists are settled together. What a row
draws is computed from that row alone; ties go to the lowest token id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from enginebay.messages import SamplingParams
from enginebay.worker.contenders import contenders
from enginebay.worker.filters import NOBODY, Floats, Ids, best_first, kept_tokens
from enginebay.worker.noise import gumbel_noise
from enginebay.worker.shortlists import Scores, Vocabulary, at_least_best, nucleus, peaks_of, probable, scaled

__all__ = ["Chance", "Quick", "Shortlist", "settle", "shortlists"]


@dataclass(frozen=True, slots=True)
class Chance:
    """What a row's random draw depends on, beside its scores: the key of its noise, and temperature and filters."""

    key: int
    params: SamplingParams


Quick = Callable[[Scores, Sequence[int], Floats, Ids, Sequence[Chance]], Sequence[int]]
"""A runner's faster way to what ``settle(shortlists(...))`` draws of these rows of the scores: their tokens, and
``NOBODY`` where it is not sure of the same one."""


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The tokens that a row may draw and some others: ``ids``, rising, with their ``scaled`` scores; ``total`` as in
    ``kept_tokens``."""

    chance: Chance
    ids: Ids
    scores: Floats
    total: float = float("nan")


def shortlists(scores: Scores, highest: Floats, best: Ids, chances: Sequence[Chance]) -> list[Shortlist]:
    """Of each row of ``[rows, vocab_size]`` scores, whose largest one is ``highest``, finite, and first at ``best``."""
    found: dict[int, Shortlist] = {}
    free = [row for row, chance in enumerate(chances) if not _filters(chance.params, scores.shape[1])]
    if free:
        every = len(free) == len(scores)
        part, peaks = (scores, highest) if every else (scores[free], highest[free])
        heats = np.array([chances[row].params.temperature for row in free])
        keys = np.array([chances[row].key for row in free], dtype=np.uint64)
        bounds = np.exp(-gumbel_noise(keys, best[free].astype(np.uint64)))
        rows, ids = contenders(part, peaks, heats, bounds, keys)
        values = scaled(part[rows, ids], peaks[rows], heats[rows])
        begins = np.searchsorted(rows, np.arange(len(free) + 1))
        for place, row in enumerate(free):
            own = slice(begins[place], begins[place + 1])
            found[row] = Shortlist(chances[row], ids[own], values[own])
    for row, chance in enumerate(chances):
        if row not in found:
            found[row] = _filtered(scores[row], float(highest[row]), chance)
    return [found[row] for row in range(len(chances))]


def _filters(params: SamplingParams, size: int) -> bool:
    return 0 < params.top_k < size or params.min_p > 0 or params.top_p < 1


def _filtered(scores: Scores, highest: float, chance: Chance) -> Shortlist:
    params, heat = chance.params, chance.params.temperature
    vocabulary, total = Vocabulary(scores, peaks_of(scores[None])[0]), float("nan")
    if 0 < params.top_k < len(scores):
        ids = at_least_best(vocabulary, params.top_k, highest)
    elif params.min_p > 0:
        ids = probable(vocabulary, params.min_p, highest, heat)
    else:
        weights = scaled(scores, highest, heat)
        np.exp(weights, out=weights)
        total = float(weights.sum())
        ids = nucleus(vocabulary, weights, total, params.top_p, highest, heat)
    return Shortlist(chance, ids, scaled(scores[ids], highest, heat), total)


def settle(lists: Sequence[Shortlist]) -> list[int]:
    """The token that each draws."""
    tokens = [NOBODY] * len(lists)
    classes: dict[int, list[int]] = {}
    for index, one in enumerate(lists):  # lists of like lengths together, so that little of a table is padding
        classes.setdefault(len(one.ids).bit_length(), []).append(index)
    for members in classes.values():
        for index, token in zip(members, _settle([lists[index] for index in members]).tolist(), strict=True):
            tokens[index] = token
    return tokens


def _settle(lists: Sequence[Shortlist]) -> Ids:
    shape = len(lists), max(len(one.ids) for one in lists)
    ids, scores = np.full(shape, NOBODY), np.full(shape, -np.inf)
    for row, one in enumerate(lists):
        ids[row, : len(one.ids)], scores[row, : len(one.ids)] = one.ids, one.scores
    params = [one.chance.params for one in lists]
    top_k, min_p, top_p = (np.array([getattr(one, name) for one in params]) for name in ("top_k", "min_p", "top_p"))
    if (top_k > 0).any() or (min_p > 0).any() or (top_p < 1).any():
        scores, ids = best_first(scores, ids)
        left = kept_tokens(scores, ids, top_k, min_p, top_p, np.array([one.total for one in lists]))
        ids, scores = ids[:, : left.max()], scores[:, : left.max()]
        scores[np.arange(ids.shape[1]) >= left[:, None]] = -np.inf
    keys = np.array([one.chance.key for one in lists], dtype=np.uint64)
    noisy = scores + gumbel_noise(keys[:, None], ids.astype(np.uint64))
    winning = noisy == noisy.max(axis=1, keepdims=True)
    tokens: Ids = np.where(winning, ids, np.iinfo(np.int64).max).min(axis=1)
    return tokens
