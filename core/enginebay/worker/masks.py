"""What is said about single tokens: bias that is added, tokens that must not come now, and those a grammar allows.

Three things ban tokens: ``bad_words_token_ids``, and below ``min_tokens`` the eos ids and the stop tokens. A ban comes
after the bias, so that no bias lifts it. Ids outside the vocabulary have no logit, and nothing is done for them.

A grammar comes before the bans. Where all that it allows would end the request, ``min_tokens`` gives way: an answer
that is complete is not made longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from enginebay.messages import GrammarOutput, SamplingParams

__all__ = ["Mask", "add_bias", "apply_masks", "ban", "banned_tokens", "grammar_masks", "wants_bans"]

Mask = npt.NDArray[np.uint8]
"""The tokens that may come, packed: bit ``i % 8`` of byte ``i // 8`` is token i. Those beyond its end may not."""


def grammar_masks(grammar: GrammarOutput | None, request_ids: Sequence[str]) -> list[Mask | None]:
    """The mask of each drawn position, None where the request is free.

    ``request_ids`` names the request of each position; those of one request come in order, as in ``grammar``.
    """
    masks: list[Mask | None] = [None] * len(request_ids)
    if grammar is None or not grammar.request_ids:
        return masks
    rows = np.frombuffer(grammar.bitmask, dtype=np.uint8).reshape(len(grammar.request_ids), 4 * grammar.words_per_row)
    left: dict[str, list[Mask]] = {}
    for request_id, row in zip(reversed(grammar.request_ids), reversed(rows), strict=True):
        left.setdefault(request_id, []).append(row)
    for position, request_id in enumerate(request_ids):
        if of_request := left.get(request_id):
            masks[position] = of_request.pop()
    return masks


def apply_masks(scores: npt.NDArray[Any], masks: Sequence[Mask]) -> None:
    """Make the scores of all but each mask's tokens minus infinity, in place, in ``[masks, vocab_size]`` scores."""
    for row, mask in zip(scores, masks, strict=True):
        bits = np.unpackbits(mask, bitorder="little", count=min(8 * mask.size, row.size))
        row[: bits.size][bits == 0] = -math.inf
        row[bits.size :] = -math.inf


def add_bias(scores: npt.NDArray[np.float64], logit_bias: Mapping[int, float]) -> None:
    """Add each value to the score of its id, in place, in ``[vocab_size]`` scores."""
    bias = {token: value for token, value in logit_bias.items() if 0 <= token < scores.size}
    scores[np.fromiter(bias, np.int64, len(bias))] += np.fromiter(bias.values(), np.float64, len(bias))


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


def ban(scores: npt.NDArray[np.float64], token_ids: Iterable[int]) -> None:
    """Make the scores of these ids minus infinity, in place, in ``[vocab_size]`` scores."""
    scores[[token for token in token_ids if 0 <= token < scores.size]] = -math.inf
