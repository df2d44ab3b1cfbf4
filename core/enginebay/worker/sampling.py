"""Draws one token per row of logits, each row with its own parameters, and tells its log-probability where asked.

The order is fixed: penalties, bias, grammar, bans (``penalties``, ``masks``); then the largest, or of a random row
``argmax(scores / temperature + noise)`` among what the filters left (``filters``), with the keyed noise of ``noise``.
Log-probabilities are those of the logits as they came (``logprobs``).
Every row is treated alone, so a row's token does not depend on the rest of the batch. Ties go to the lowest token id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch

from enginebay.messages import SamplingParams, TokenLogprob
from enginebay.worker.filters import kept_tokens
from enginebay.worker.logprobs import token_logprob, unusable
from enginebay.worker.masks import Mask, add_bias, apply_masks, ban, banned_tokens, wants_bans
from enginebay.worker.noise import draw_key, gumbel_noise
from enginebay.worker.penalties import penalize, wants_penalties

__all__ = ["Draw", "Drawn", "Largest", "draw_tokens"]

Largest = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Logits ``[rows, vocab_size]`` → of each row the lowest id among the largest (a NaN counts as the largest), and what
stands there; a runner with a faster way than ours brings it."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row's draw depends on, beside its logits.

    ``token_ids`` is everything known of the row, prompt and answer, of which the first ``num_prompt_tokens`` are the
    prompt; ``eos_token_ids`` are the model's.
    """

    params: SamplingParams
    token_ids: Sequence[int]
    num_prompt_tokens: int
    seed: int = 0
    choice: int = 0
    eos_token_ids: Sequence[int] = ()

    @property
    def position(self) -> int:
        """The index that the token will have, prompt included."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token id per row, and what went wrong with the rows that have none (their token is None).

    ``logprobs`` has an entry for each row that asked for it and drew a token.
    """

    token_ids: list[int | None]
    faults: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)


def draw_tokens(
    logits: torch.Tensor,
    draws: Sequence[Draw],
    *,
    masks: Sequence[Mask | None] | None = None,
    largest: Largest | None = None,
) -> Drawn:
    """Draw a token for each row of ``logits`` ``[len(draws), vocab_size]`` (any float dtype, any device).

    ``masks`` has, for each row, what its grammar allows (``masks.grammar_masks``), None for a row without one.
    A row without a largest finite logit (NaN, infinite, or every token banned) is a fault of that row alone.
    """
    assert logits.ndim == 2, f"logits have shape {tuple(logits.shape)}"
    assert len(draws) == len(logits), f"{len(draws)} draws for {len(logits)} rows of logits"
    assert masks is None or len(masks) == len(draws), f"{len(draws)} draws, and masks for another number of rows"
    if not draws:
        return Drawn([])
    best, highest_logits = (largest or _largest_with_value)(logits)
    peaks = highest_logits.double().tolist()
    tokens: list[int] = best.tolist()
    drawn = Drawn([*tokens])
    allowed = {} if masks is None else _largest_allowed(logits, draws, masks)
    for row, (peak, token, draw) in enumerate(zip(peaks, tokens, draws, strict=True)):
        fault = _fault_of_model(peak, draw.position)
        mask = None if masks is None else masks[row]
        if fault is None and row in allowed:
            drawn.token_ids[row] = token = allowed[row]
        elif fault is None and (draw.params.temperature > 0 or mask is not None or _changes_logits(draw)):
            scores = _scores(logits[row], draw, mask)
            highest = float(scores.max())
            fault = _fault_of_request(highest, draw.position, "the grammar, " if mask is not None else "")
            if fault is None:
                drawn.token_ids[row] = token = _choose(scores, highest, draw)
        if fault is not None:
            drawn.token_ids[row] = None
            drawn.faults[row] = fault
        elif draw.params.logprobs is not None:
            drawn.logprobs[row] = token_logprob(logits[row], token, draw.params.logprobs)
    return drawn


def _fault_of_model(peak: float, position: int) -> str | None:
    what = unusable(peak)
    return None if what is None else f"the model's logits for token {position} are {what}: no token can be drawn"


def _fault_of_request(peak: float, position: int, grammar: str) -> str | None:
    what = unusable(peak)
    if what is None:
        return None
    if peak < 0:
        return f"no token is left for token {position}: {grammar}logit_bias, bad_words and min_tokens ban every one"
    return f"penalties and logit_bias make the logits for token {position} {what}: no token can be drawn"


def _largest(scores: torch.Tensor) -> torch.Tensor:
    """The index of the largest along the last dimension: of equal ones the first. A NaN counts as the largest."""
    if scores.device.type != "cpu":
        return scores.argmax(dim=-1)
    # on a CPU numpy looks at several numbers at a time, torch at one
    wide = scores if scores.dtype.itemsize >= 4 else scores.float()
    return torch.from_numpy(np.asarray(wide.numpy().argmax(axis=-1)))


def _largest_with_value(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    best = _largest(logits)
    return best, logits.gather(1, best.unsqueeze(1)).squeeze(1)


def _largest_allowed(logits: torch.Tensor, draws: Sequence[Draw], masks: Sequence[Mask | None]) -> dict[int, int]:
    """The tokens of the rows that are greedy and where the mask is all that counts, at once; no row without any."""
    found = {
        row: mask
        for row, (draw, mask) in enumerate(zip(draws, masks, strict=True))
        if mask is not None and draw.params.temperature == 0 and not _changes_logits(draw)
    }
    if not found:
        return {}
    scores = logits[list(found)]
    apply_masks(scores, list(found.values()))
    best = _largest(scores)
    peaks = scores.gather(1, best.unsqueeze(1)).squeeze(1).tolist()
    return {row: token for row, token, peak in zip(found, best.tolist(), peaks, strict=True) if peak > -torch.inf}


def _changes_logits(draw: Draw) -> bool:
    params = draw.params
    bans = wants_bans(params, draw.position - draw.num_prompt_tokens)
    return bans or bool(params.logit_bias) or wants_penalties(params)


def _scores(logits: torch.Tensor, draw: Draw, mask: Mask | None) -> torch.Tensor:
    """One row's scores: what penalties, bias, grammar and bans make of its logits, in float64."""
    # in float64 the division, the sum and the noise round so finely that no rounding decides a draw
    scores = logits.to(torch.float64, copy=True)
    params, known, prompt = draw.params, draw.token_ids, draw.num_prompt_tokens
    if wants_penalties(params):
        penalize(scores, params, known, prompt)
    if params.logit_bias:
        add_bias(scores, params.logit_bias)
    if mask is not None:
        apply_masks(scores.unsqueeze(0), [mask])
        if len(known) - prompt < params.min_tokens and not _goes_on(scores, draw):
            params = msgspec.structs.replace(params, min_tokens=0)
    if wants_bans(params, len(known) - prompt):
        ban(scores, banned_tokens(params, known, prompt, draw.eos_token_ids))
    return scores


def _goes_on(scores: torch.Tensor, draw: Draw) -> bool:
    """Whether there is a token that does not end the request."""
    ends = [*draw.eos_token_ids, *draw.params.stop_token_ids]
    others = scores.clone()
    ban(others, ends)
    return bool(others.max() > -torch.inf)


def _choose(scores: torch.Tensor, highest: float, draw: Draw) -> int:
    params = draw.params
    if params.temperature == 0:
        return int(_largest(scores))
    # the largest score is taken off first, so that a tiny temperature overflows towards -inf only
    scores = (scores - highest) / params.temperature
    key = draw_key(draw.seed, draw.choice, draw.position)
    if params.top_k <= 0 and params.min_p <= 0.0 and params.top_p >= 1.0:
        noise = torch.from_numpy(gumbel_noise(key, scores.numel()))
        return int(_largest(scores + noise.to(scores.device)))
    kept = kept_tokens(scores, params.top_k, params.min_p, params.top_p)
    kept = kept.sort().values  # by id, so that ties go to the lowest
    noise = torch.from_numpy(gumbel_noise(key, kept.cpu().numpy().astype(np.uint64)))
    return int(kept[_largest(scores[kept] + noise.to(scores.device))])
