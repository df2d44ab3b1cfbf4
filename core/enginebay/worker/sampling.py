"""Draws one token per row of logits, each row with its own parameters, and tells its log-probability where asked.

The order is fixed: penalties, bias, grammar, bans (``penalties``, ``masks``); then the largest, or a random draw among
what the filters left (``random_draws``).
Log-probabilities are those of the logits as they came (``logprobs``).
Every row is treated alone, so a row's token does not depend on the rest of the batch. Ties go to the lowest token id.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch

from enginebay.messages import SamplingParams, TokenLogprob
from enginebay.worker.filters import NOBODY, Floats, Ids
from enginebay.worker.logprobs import host, in_chunks, token_logprobs, unusable
from enginebay.worker.masks import Mask, add_bias, apply_masks, ban, banned_tokens, wants_bans
from enginebay.worker.noise import draw_key
from enginebay.worker.penalties import penalize, wants_penalties
from enginebay.worker.random_draws import Chance, Quick, Shortlist, settle, shortlists
from enginebay.worker.shortlists import Scores

__all__ = ["Draw", "Drawn", "Largest", "draw_tokens", "plain_largest", "takes_the_largest"]

Largest = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Logits ``[rows, vocab_size]`` → of each row the lowest id among the largest (a NaN counts as the largest), and what
stands there; a runner with a faster way than ours brings it."""


def plain_largest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A ``Largest`` for any device."""
    if logits.device.type == "cpu":  # numpy looks at several numbers at a time there, torch at one
        wide = logits if logits.dtype.itemsize >= 4 else logits.float()
        best = torch.from_numpy(np.asarray(wide.numpy().argmax(axis=1)))
    else:
        best = logits.argmax(dim=1)
    return best, logits.gather(1, best.unsqueeze(1)).squeeze(1)


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
    largest: Largest = plain_largest,
    quick: Quick | None = None,
) -> Drawn:
    """Draw a token for each row of ``logits`` ``[len(draws), vocab_size]`` (any float dtype, any device).

    ``masks`` has, for each row, what its grammar allows (``masks.grammar_masks``), None for a row without one.
    A row without a largest finite logit (NaN, infinite, or every token banned) is a fault of that row alone.
    ``quick`` draws what it is sure of; without it, the tokens are the same ones.
    """
    assert logits.ndim == 2, f"logits have shape {tuple(logits.shape)}"
    assert len(draws) == len(logits), f"{len(draws)} draws for {len(logits)} rows of logits"
    assert masks is None or len(masks) == len(draws), f"{len(draws)} draws, and masks for another number of rows"
    if not draws:
        return Drawn([])
    best, highest_logits = largest(logits)
    peaks: list[float] = highest_logits.double().tolist()
    drawn = Drawn([*best.tolist()])
    greedy = {} if masks is None else _largest_allowed(logits, draws, masks)
    plain: list[int] = []
    shaped: list[int] = []
    for row, (peak, draw) in enumerate(zip(peaks, draws, strict=True)):
        if (fault := _fault_of_model(peak, draw.position)) is not None:
            drawn.faults[row] = fault
        elif row in greedy:
            drawn.token_ids[row] = greedy[row]
        elif (masks is not None and masks[row] is not None) or _changes_logits(draw):
            shaped.append(row)
        elif draw.params.temperature > 0:
            plain.append(row)
    lists = _plain_lists(logits, plain, draws, peaks, best, drawn, quick)
    for rows in in_chunks(shaped, logits.shape[1]):
        lists |= _shape(logits, rows, draws, masks, drawn, quick)
    for row, token in zip(lists, settle(list(lists.values())), strict=True):
        drawn.token_ids[row] = token
    for row in drawn.faults:
        drawn.token_ids[row] = None
    _tell_logprobs(logits, draws, drawn)
    return drawn


def _plain_lists(
    logits: torch.Tensor,
    rows: list[int],
    draws: Sequence[Draw],
    peaks: Sequence[float],
    best: torch.Tensor,
    drawn: Drawn,
    quick: Quick | None,
) -> dict[int, Shortlist]:
    """``_lists`` of the rows that draw from the logits as they came."""
    if not rows:
        return {}
    highest, tops = np.array([peaks[row] for row in rows]), best.cpu().numpy()[rows]
    every = quick is not None and logits.dtype in (torch.float32, torch.float64)  # no copy of a few rows is made
    scores, places = (host(logits, range(len(logits))), rows) if every else (host(logits, rows), range(len(rows)))
    return _lists(scores, places, highest, tops, rows, draws, drawn, quick)


def _lists(
    scores: Scores,
    places: Sequence[int],
    highest: Floats,
    best: Ids,
    rows: Sequence[int],
    draws: Sequence[Draw],
    drawn: Drawn,
    quick: Quick | None,
) -> dict[int, Shortlist]:
    """Tokens of the rows whose scores stand at these places, as far as ``quick`` is sure; shortlists of the others."""
    chances = [_chance(draws[row]) for row in rows]
    open_ones = list(range(len(rows)))
    if quick is not None:
        tokens = quick(scores, places, highest, best, chances)
        open_ones = [at for at, token in enumerate(tokens) if token == NOBODY]
        for row, token in zip(rows, tokens, strict=True):
            drawn.token_ids[row] = token
    if not open_ones:
        return {}
    part = [places[at] for at in open_ones]
    every = len(part) == len(scores)
    lists = shortlists(
        scores if every else scores[part], highest[open_ones], best[open_ones], [chances[at] for at in open_ones]
    )
    return dict(zip((rows[at] for at in open_ones), lists, strict=True))


def _shape(
    logits: torch.Tensor,
    rows: list[int],
    draws: Sequence[Draw],
    masks: Sequence[Mask | None] | None,
    drawn: Drawn,
    quick: Quick | None,
) -> dict[int, Shortlist]:
    """Greedy tokens and faults of these rows into ``drawn``; ``_lists`` of those that draw at random."""
    scores = host(logits, rows).astype(np.float64)
    for place, row in enumerate(rows):
        _change(scores[place], draws[row], None if masks is None else masks[row])
    best = scores.argmax(axis=1)
    highest = scores[np.arange(len(rows)), best]
    random: list[int] = []
    for place, row in enumerate(rows):
        draw, grammar = draws[row], "the grammar, " if masks is not None and masks[row] is not None else ""
        if (fault := _fault_of_request(float(highest[place]), draw.position, grammar)) is not None:
            drawn.faults[row] = fault
        elif draw.params.temperature == 0:
            drawn.token_ids[row] = int(best[place])
        else:
            random.append(place)
    if not random:
        return {}
    asked = [rows[place] for place in random]
    return _lists(scores, random, highest[random], best[random], asked, draws, drawn, quick)


def _chance(draw: Draw) -> Chance:
    return Chance(draw_key(draw.seed, draw.choice, draw.position), draw.params)


def _tell_logprobs(logits: torch.Tensor, draws: Sequence[Draw], drawn: Drawn) -> None:
    asked: dict[int, tuple[int, int]] = {}
    for row, (draw, token) in enumerate(zip(draws, drawn.token_ids, strict=True)):
        if draw.params.logprobs is not None and token is not None:
            asked[row] = token, draw.params.logprobs
    if asked:
        tokens, tops = [token for token, _ in asked.values()], [top for _, top in asked.values()]
        entries = token_logprobs(logits, tokens, tops, list(asked))
        drawn.logprobs.update(zip(asked, entries, strict=True))


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


def _largest_allowed(logits: torch.Tensor, draws: Sequence[Draw], masks: Sequence[Mask | None]) -> dict[int, int]:
    """The tokens of the rows that are greedy and where the mask is all that counts, at once; no row without any."""
    found = {
        row: mask
        for row, (draw, mask) in enumerate(zip(draws, masks, strict=True))
        if mask is not None and draw.params.temperature == 0 and not _changes_logits(draw)
    }
    if not found:
        return {}
    scores = np.array(host(logits, list(found)))
    apply_masks(scores, list(found.values()))
    best = scores.argmax(axis=1)
    peaks = scores[np.arange(len(best)), best].tolist()
    return {row: token for row, token, peak in zip(found, best.tolist(), peaks, strict=True) if peak > -math.inf}


def takes_the_largest(params: SamplingParams, num_generated: int) -> bool:
    """Whether the largest logit is all that counts of this draw, and nothing more is told of it."""
    return params.temperature == 0 and params.logprobs is None and not _changes(params, num_generated)


def _changes_logits(draw: Draw) -> bool:
    return _changes(draw.params, draw.position - draw.num_prompt_tokens)


def _changes(params: SamplingParams, num_generated: int) -> bool:
    return wants_bans(params, num_generated) or bool(params.logit_bias) or wants_penalties(params)


def _change(scores: Floats, draw: Draw, mask: Mask | None) -> None:
    """Make of one row's logits, in float64, what penalties, bias, grammar and bans leave of them."""
    params, known, prompt = draw.params, draw.token_ids, draw.num_prompt_tokens
    if wants_penalties(params):
        penalize(scores, params, known, prompt)
    if params.logit_bias:
        add_bias(scores, params.logit_bias)
    if mask is not None:
        apply_masks(scores[None], [mask])
        if len(known) - prompt < params.min_tokens and not _goes_on(scores, draw):
            params = msgspec.structs.replace(params, min_tokens=0)
    if wants_bans(params, len(known) - prompt):
        ban(scores, banned_tokens(params, known, prompt, draw.eos_token_ids))


def _goes_on(scores: Floats, draw: Draw) -> bool:
    """Whether there is a token that does not end the request."""
    others = scores.copy()
    ban(others, [*draw.eos_token_ids, *draw.params.stop_token_ids])
    return bool(others.max() > -math.inf)
