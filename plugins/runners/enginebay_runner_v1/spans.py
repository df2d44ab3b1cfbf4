"""What one forward computes of one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.worker import ScheduledRow
from enginebay.worker.answers import prompt_targets

__all__ = ["Span", "span_of"]


@dataclass(frozen=True, slots=True)
class Span:
    """One request's tokens of a step: where they begin, their ids, its blocks in each group, and behind how many of the
    last ones tokens are drawn (0: the step does not reach the end of what is known; proposals are among them).

    ``targets`` are the prompt tokens that its first rows predict, where their log-probabilities are asked for, with
    ``top`` others beside each.
    """

    start: int
    token_ids: Sequence[int]
    block_ids: Sequence[Sequence[int]]
    drawn: int
    targets: Sequence[int] = ()
    top: int = 0


def span_of(part: ScheduledRow) -> Span:
    """The request's tokens of the step."""
    row, start = part.row, part.row.num_computed_tokens
    return Span(
        start,
        part.token_ids,
        row.block_ids,
        1 + len(part.draft_token_ids) if part.samples else 0,
        prompt_targets(part),
        row.params.prompt_logprobs or 0,
    )
