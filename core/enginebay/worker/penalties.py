"""What a row's own tokens take off its logits: repetition, frequency and presence penalties, in this order.

The repetition penalty is of Keskar et al., "CTRL: a conditional transformer language model for controllable
generation" (2019), in the form that everybody uses: a negative logit is multiplied where a positive one is divided.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from enginebay.messages import SamplingParams

__all__ = ["penalize", "wants_penalties"]


def wants_penalties(params: SamplingParams) -> bool:
    """Whether ``penalize`` would change anything."""
    return params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0


def penalize(
    scores: NDArray[np.float64], params: SamplingParams, token_ids: Sequence[int], num_prompt_tokens: int
) -> None:
    """Take the penalties off ``[vocab_size]`` scores, in place.

    ``token_ids`` is everything known of the row, of which the first ``num_prompt_tokens`` are the prompt: those count
    for the repetition penalty alone. Frequency counts each occurrence in the answer, presence each token once.
    """
    with np.errstate(over="ignore"):  # the row's own fault, which the sampler tells
        if params.repetition_penalty != 1.0:
            seen, _ = _counted(token_ids, scores.size)
            old = scores[seen]
            scores[seen] = np.where(old > 0, old / params.repetition_penalty, old * params.repetition_penalty)
        if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
            answered, counts = _counted(token_ids[num_prompt_tokens:], scores.size)
            scores[answered] -= params.frequency_penalty * counts + params.presence_penalty


def _counted(token_ids: Sequence[int], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which ids below ``size`` occur, rising, and how often each."""
    known = np.asarray(token_ids, dtype=np.int64)
    ids, counts = np.unique(known[known < size], return_counts=True)
    return ids, counts
