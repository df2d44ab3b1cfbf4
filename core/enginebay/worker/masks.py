"""What a request says about single tokens: bias that is added, and tokens that must not come now.

Three things ban tokens: ``bad_words_token_ids``, and below ``min_tokens`` the eos ids and the stop tokens. A ban comes
after the bias, so that no bias lifts it. Ids outside the vocabulary have no logit, and nothing is done for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from enginebay.messages import SamplingParams

__all__ = ["add_bias", "ban", "banned_tokens", "wants_bans"]


def add_bias(scores: torch.Tensor, logit_bias: Mapping[int, float]) -> None:
    """Add each value to the score of its id, in place, in ``[vocab_size]`` scores."""
    bias = {token: value for token, value in logit_bias.items() if 0 <= token < scores.numel()}
    ids = torch.tensor(list(bias), dtype=torch.int64, device=scores.device)
    scores[ids] += torch.tensor(list(bias.values()), dtype=scores.dtype, device=scores.device)


def wants_bans(params: SamplingParams, num_generated: int) -> bool:
    """Whether ``banned_tokens`` may have any."""
    return bool(params.bad_words_token_ids) or num_generated < params.min_tokens


def banned_tokens(
    params: SamplingParams, token_ids: Sequence[int], num_prompt_tokens: int, eos_token_ids: Sequence[int]
) -> Iterator[int]:
    """The ids that may not come next; some may come twice.

    The last token of a bad word is banned when ``token_ids`` ends with all that stand before it. The prompt counts
    there: a word that the prompt began is not completed either.
    """
    if len(token_ids) - num_prompt_tokens < params.min_tokens:
        yield from params.stop_token_ids
        if not params.ignore_eos:
            yield from eos_token_ids
    for *begun, last in params.bad_words_token_ids:
        if not begun or list(token_ids[-len(begun) :]) == begun:
            yield last


def ban(scores: torch.Tensor, token_ids: Iterable[int]) -> None:
    """Make the scores of these ids minus infinity, in place, in ``[vocab_size]`` scores."""
    ids = [token for token in token_ids if 0 <= token < scores.numel()]
    scores[torch.tensor(ids, dtype=torch.int64, device=scores.device)] = -math.inf
