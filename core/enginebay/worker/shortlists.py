"""The few tokens of a row that can matter, found by comparing the whole vocabulary with one number.

A shortlist holds at least what is asked for; whoever asks sorts it out exactly. It is found by the largest of each 64
scores: most of those are below the number, and then so are all 64. These do not stand side by side: n groups of 64 are
the columns of a table ``[64, n]``, whose largest numpy finds ten times faster than those of its rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginebay.worker.filters import Floats, Ids

__all__ = ["Scores", "Vocabulary", "at_least_best", "nucleus", "peaks_of", "probable", "scaled"]

Scores = NDArray[Any]
"""Float32 or float64."""
_GROUP = 64
_STEP = 16.0
"""How much less likely tokens each further look for a nucleus takes in."""


def peaks_of(scores: Scores) -> Scores:
    """``[rows, n]`` → of each row the largest of each group, and last of those that are left over, if any are."""
    whole = scores.shape[1] // _GROUP * _GROUP
    peaks = scores[:, :whole].reshape(len(scores), _GROUP, -1).max(axis=1)
    rest = scores[:, whole:]
    return np.concatenate((peaks, rest.max(axis=1, keepdims=True)), axis=1) if rest.shape[1] else peaks


def scaled(scores: Scores, highest: Any, temperature: Any) -> Floats:
    """What noise is added to: the largest is 0. It goes first, so that a tiny temperature overflows towards -inf only.

    In float64 the difference, the quotient and the noise round so finely that no rounding decides a draw.
    """
    with np.errstate(over="ignore", under="ignore"):
        wide: Floats = np.subtract(scores, highest, dtype=np.float64)
        wide /= temperature
    return wide


class Vocabulary:
    """One row's scores with its ``peaks_of``."""

    def __init__(self, scores: Scores, peaks: Scores) -> None:
        self._scores, self._peaks = scores, peaks

    def at_least(self, least: float) -> Ids:
        """The ids, rising, of the scores that are finite and not below."""
        scores, bound = self._scores, _floor(least, self._scores.dtype)
        groups = len(scores) // _GROUP
        reached = np.flatnonzero(self._peaks[:groups] >= bound)
        if 4 * len(reached) > groups:
            return np.flatnonzero(scores >= bound)
        whole = groups * _GROUP
        places, columns = np.nonzero(scores[:whole].reshape(_GROUP, groups)[:, reached] >= bound)
        ids: Ids = places * groups + reached[columns]
        return ids if whole == len(scores) else np.concatenate((ids, whole + np.flatnonzero(scores[whole:] >= bound)))

    def best(self, count: int) -> float:
        """A number that the ``count`` best are not below, and few others reach."""
        if count >= len(self._scores):
            return -np.inf
        among = self._peaks if 4 * count <= len(self._peaks) else self._scores
        return float(np.partition(among, len(among) - count)[len(among) - count])


def at_least_best(vocabulary: Vocabulary, count: int, highest: float) -> Ids:
    """Among these are the ``count`` best that are finite, also by ``scaled`` scores, where other ones may be equal."""
    last = vocabulary.best(count)
    return vocabulary.at_least(last - 1e-15 * abs(highest - last))


def probable(vocabulary: Vocabulary, share: float, highest: float, temperature: float) -> Ids:
    """Among these are all that are at least ``share`` (above 0) times as likely as the likeliest."""
    with np.errstate(over="ignore"):
        least = highest + temperature * (np.log(share) - 1e-9)
    return vocabulary.at_least(least - 1e-15 * max(abs(highest), abs(least)))


def nucleus(vocabulary: Vocabulary, weights: Floats, total: float, top_p: float, highest: float, heat: float) -> Ids:
    """Among these is the nucleus: the best tokens, so many that they reach ``top_p`` of ``total``.

    ``weights`` are ``exp(scaled)`` of the whole vocabulary, and ``total`` is their sum; ``heat`` is the temperature.
    """
    share = (1 - top_p) / 32 * total
    while share * len(weights) > (1 - top_p) * total / _STEP:
        ids = probable(vocabulary, min(1.0, share), highest, heat)
        if weights[ids].sum() >= (top_p + 1e-9) * total:
            return ids
        share /= _STEP
    return vocabulary.at_least(-np.inf)


def _floor(value: float, dtype: np.dtype[Any]) -> Any:
    """The largest finite number of this type that is not above; below the finite ones, the smallest of these."""
    limits = np.finfo(dtype)
    bounded = min(max(value, float(limits.min)), float(limits.max))
    rounded = dtype.type(bounded)
    return rounded if float(rounded) <= bounded else np.nextafter(rounded, dtype.type(-np.inf))
