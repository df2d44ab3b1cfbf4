"""Which tokens may win a random draw among the whole vocabulary, found with no logarithm and in single precision.

The largest ``score - log(-log(u))`` is the smallest ``-log(u) / exp(score)``. One token's value of it is a bound: what
is above it has lost. ``1 - u`` is never above ``-log(u)``, and cheaper, so what has ``1 - u > bound * exp(score)`` has
lost too. The few that are left, a handful for a model that is sure of anything, are compared exactly elsewhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from enginebay.worker.filters import Floats, Ids
from enginebay.worker.noise import noise_bits
from enginebay.worker.shortlists import Scores, scaled

__all__ = ["contenders"]

_MARGIN = np.float32(1.001)
"""For all that single precision rounds."""


def contenders(
    scores: Scores, highest: Floats, temperatures: Floats, bounds: Floats, keys: NDArray[np.uint64]
) -> tuple[Ids, Ids]:
    """(rows, ids), in rising order, of ``[rows, vocab_size]`` scores; ``bounds`` are the values of any
    tokens of theirs: ``exp(-(score + noise))``."""
    ids = np.arange(scores.shape[1], dtype=np.uint64)
    rows, found = [], []
    for row, of_row in enumerate(scores):
        with np.errstate(over="ignore", under="ignore"):
            chances = scaled(of_row, highest[row], temperatures[row]).astype(np.float32)
            np.exp(chances, out=chances)
            chances *= np.float32(bounds[row]) * _MARGIN
        bits = noise_bits(int(keys[row]), ids)
        np.invert(bits, out=bits)
        bits >>= np.uint64(12)
        missing = bits.astype(np.float32)  # of 1, in units of 2**-52, and half a unit less than it is
        missing *= np.float32(2.0**-52 / _MARGIN)
        left = np.flatnonzero(missing <= chances)
        rows.append(np.full(len(left), row))
        found.append(left)
    return np.concatenate(rows), np.concatenate(found)
