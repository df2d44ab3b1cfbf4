"""What of a step's draws the native kernels do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from enginebay.worker.filters import Floats, Ids
from enginebay.worker.random_draws import Chance
from enginebay.worker.shortlists import Scores

__all__ = ["native_draws"]


def native_draws(
    scores: Scores, rows: Sequence[int], highest: Floats, best: Ids, chances: Sequence[Chance]
) -> Sequence[int]:
    """A ``Quick``. What it computes otherwise than numpy is so near that it can tell where that might matter."""
    params = [chance.params for chance in chances]
    given = (
        scores,
        np.asarray(rows, dtype=np.int64),
        highest,
        best,
        np.array([chance.key for chance in chances], dtype=np.uint64).view(np.int64),
        np.array([one.temperature for one in params]),
        np.array([one.top_k for one in params], dtype=np.int64),
        np.array([one.min_p for one in params], dtype=np.float64),
        np.array([one.top_p for one in params], dtype=np.float64),
    )
    tokens: list[int] = torch.ops.enginebay.draws(*map(torch.from_numpy, given)).tolist()
    return tokens
