"""What of a step's draws the native kernels do."""

from __future__ import annotations

import numpy as np
import torch

from enginebay.worker.contenders import Keys, contenders
from enginebay.worker.filters import Floats, Ids
from enginebay.worker.shortlists import Scores

__all__ = ["native_contenders"]

_SINGLE = 5e3
"""By so much at most a score may exceed its temperature that is rounded to single precision: a score that may win is
less than 60 temperatures below the largest, so what rounding changes of the quotient is under 4e-4, and the margin
that ``contenders`` leaves is 1e-3."""


def native_contenders(
    scores: Scores, highest: Floats, temperatures: Floats, bounds: Floats, keys: Keys
) -> tuple[Ids, Ids]:
    """See ``contenders``. Where single precision would move scores too far, at very low temperatures, the plain way."""
    single = scores
    if scores.dtype != np.float32:
        if (np.abs(highest) > _SINGLE * temperatures).any():
            return contenders(scores, highest, temperatures, bounds, keys)
        with np.errstate(over="ignore"):
            single = scores.astype(np.float32)
    given = (single, highest, temperatures, bounds, keys.view(np.int64))
    rows, ids = torch.ops.enginebay.contenders(*map(torch.from_numpy, given))
    return rows.numpy(), ids.numpy()
