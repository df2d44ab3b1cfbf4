"""From a step's draws, and the log-probabilities of its prompts, to what the runner answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from enginebay.messages import ModelRunnerOutput, PromptLogprobs, TokenLogprob
from enginebay.worker.logprobs import token_logprobs, unusable
from enginebay.worker.table import RequestTable, ScheduledRow
from enginebay.worker.verification import StepDraws

__all__ = ["ROWS_AT_ONCE", "PromptEntries", "answer_step", "prompt_entries", "prompt_targets"]

ROWS_AT_ONCE = 64
"""Rows of logits of a prompt that exist at one time: 38 MB in fp32 with a vocabulary of 150,000."""

PromptEntries = list[TokenLogprob] | str
"""Log-probabilities of the prompt tokens of one request's step, or what is wrong with its logits."""


def prompt_targets(scheduled: ScheduledRow) -> Sequence[int]:
    """The prompt tokens that the step's first rows of this request predict; empty when it did not ask.

    A row predicts the token after its own, so the prompt's first token has none, and its last row belongs to the draw.
    Of several choices, which share one prompt, the first alone answers for it.
    """
    row = scheduled.row
    if row.params.prompt_logprobs is None or row.choice != 0:
        return ()
    start = row.num_computed_tokens
    return row.token_ids[start + 1 : min(start + scheduled.num_tokens + 1, row.num_prompt_tokens)]


def prompt_entries(
    head: Callable[[Sequence[int]], torch.Tensor], rows: Sequence[int], targets: Sequence[int], top: int
) -> PromptEntries:
    """The entry of each of the ``targets`` at these rows of the step, or what is wrong with the first that has none.

    ``head`` gives the logits ``[n, vocab_size]`` of n rows; it is asked for a few at a time.
    """
    entries: list[TokenLogprob] = []
    for begin in range(0, len(rows), ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        logits = head(rows[part])
        for peak in logits.amax(dim=1).tolist():
            if (what := unusable(peak)) is not None:
                return what
        entries += token_logprobs(logits, targets[part], top)
    return entries


def answer_step(
    table: RequestTable, scheduled: Sequence[ScheduledRow], drawn: StepDraws, prompts: Mapping[int, PromptEntries]
) -> ModelRunnerOutput:
    """Tell the table what was drawn, and return the step's output. ``prompts`` is by the index of a scheduled row."""
    faults, prompt_logprobs = dict(drawn.faults), dict[str, PromptLogprobs]()
    for index, entries in prompts.items():
        row = scheduled[index].row
        if isinstance(entries, str):
            faults[row.request_id] = f"the model's logits for the prompt are {entries}: no log-probability is known"
        else:
            prompt_logprobs[row.request_id] = PromptLogprobs(start=row.num_computed_tokens + 1, entries=tuple(entries))
    return table.finish_step(drawn.token_ids, faults, logprobs=drawn.logprobs, prompt_logprobs=prompt_logprobs)
