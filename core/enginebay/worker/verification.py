"""Draws the tokens of a step: one for each request, or several where proposals stand behind its known tokens.

A proposal is verified by drawing: the model's own token is drawn where it stands, with the noise, the penalties and
the bans that it would have had if the tokens before it had been drawn one by one. As long as it is the proposed one
the next position is drawn too. So what comes out does not depend on what was proposed, nor on whether anything was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from enginebay.messages import GrammarOutput, TokenLogprob
from enginebay.worker.masks import grammar_masks
from enginebay.worker.random_draws import Quick
from enginebay.worker.sampling import Draw, Largest, draw_tokens, plain_largest, takes_the_largest
from enginebay.worker.table import ScheduledRow

__all__ = ["StepDraws", "draw_step"]


@dataclass(frozen=True, slots=True)
class StepDraws:
    """What each request drew, by its id: one token and one more for each proposal that held.

    A request in ``faults`` drew none. ``logprobs`` has an entry per token of those that asked.
    """

    token_ids: dict[str, list[int]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)


def draw_step(
    logits: torch.Tensor,
    rows: Sequence[ScheduledRow],
    eos_token_ids: Sequence[int],
    grammar: GrammarOutput | None = None,
    *,
    largest: Largest = plain_largest,
    quick: Quick | None = None,
) -> StepDraws:
    """Draw for the rows of a step that reach the end of what is known.

    ``logits`` ``[positions, vocab_size]`` has for each row, in order, the position of its last known token and those of
    its proposals. Logits at fault behind a proposal end the row's drawing there, and are no fault of the row yet: drawn
    one by one, the step that comes to them would tell.
    """
    if grammar is None and (draws := _largest_of_each(logits, rows, largest)) is not None:
        return draws
    first = [0]
    for row in rows:
        first.append(first[-1] + 1 + len(row.draft_token_ids))
    assert len(logits) == first[-1], f"{len(logits)} rows of logits for {first[-1]} positions"
    ids = [row.row.request_id for row in rows for _ in range(1 + len(row.draft_token_ids))]
    masks = None if grammar is None else grammar_masks(grammar, ids)
    draws, depth, going = StepDraws(), 0, list(range(len(rows)))
    while going:
        at = [first[index] + depth for index in going]
        drawn = draw_tokens(
            logits if len(at) == len(logits) else logits[at],
            [_draw(rows[index], depth, eos_token_ids) for index in going],
            masks=None if masks is None else [masks[position] for position in at],
            largest=largest,
            quick=quick,
        )
        further: list[int] = []
        for place, index in enumerate(going):
            row, token = rows[index], drawn.token_ids[place]
            request_id = row.row.request_id
            if token is None:
                if not depth:
                    draws.faults[request_id] = drawn.faults[place]
                continue
            draws.token_ids.setdefault(request_id, []).append(token)
            if place in drawn.logprobs:
                draws.logprobs.setdefault(request_id, []).append(drawn.logprobs[place])
            if depth < len(row.draft_token_ids) and token == row.draft_token_ids[depth]:
                further.append(index)
        going, depth = further, depth + 1
    return draws


def _largest_of_each(logits: torch.Tensor, rows: Sequence[ScheduledRow], largest: Largest) -> StepDraws | None:
    """The step's draws if no row asks for more than its largest logit, and no logits are at fault."""
    for part in rows:
        row = part.row
        if part.draft_token_ids or not takes_the_largest(row.params, len(row.token_ids) - row.num_prompt_tokens):
            return None
    if not rows:
        return StepDraws()
    ids, values = largest(logits)
    if not all(map(math.isfinite, values.tolist())):
        return None
    return StepDraws({part.row.request_id: [token] for part, token in zip(rows, ids.tolist(), strict=True)})


def _draw(scheduled: ScheduledRow, depth: int, eos_token_ids: Sequence[int]) -> Draw:
    """The draw behind the first ``depth`` proposals of a row."""
    row = scheduled.row
    known = [*row.token_ids, *scheduled.draft_token_ids[:depth]] if depth else row.token_ids
    return Draw(row.params, known, row.num_prompt_tokens, row.seed, row.choice, eos_token_ids)
