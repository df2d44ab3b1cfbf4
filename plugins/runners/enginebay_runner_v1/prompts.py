"""Log-probabilities of prompts: which tokens of a step they are for, and the model's head run over few rows at a time.

Logits of a whole prompt would be its length times the vocabulary, gigabytes for a long one, so they are never made at
once. What stands between the last layer and the logits (norms, scales, caps) is each family's own, so the head is run
by the model's own forward, whose body is replaced for the moment by what it returned in the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from enginebay.messages import TokenLogprob
from enginebay.worker import ScheduledRow
from enginebay.worker.logprobs import token_logprob, unusable

__all__ = ["ROWS_AT_ONCE", "body_outputs", "logprobs_in_chunks", "prompt_targets"]

ROWS_AT_ONCE = 64
"""Rows of logits that exist at one time: 38 MB in fp32 with a vocabulary of 150,000."""


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


@contextmanager
def body_outputs(model: Any) -> Iterator[list[Any]]:
    """What the model's body, all of it but the head, returns while this is open."""
    outputs: list[Any] = []
    handle = model.get_decoder().register_forward_hook(lambda _module, _args, output: outputs.append(output))
    try:
        yield outputs
    finally:
        handle.remove()


def logprobs_in_chunks(
    model: Any, inputs: Mapping[str, Any], body_output: Any, rows: Sequence[int], targets: Sequence[int], top: int
) -> list[TokenLogprob] | str:
    """The entry of each of the ``targets`` at these rows of the step, or what is wrong with the first that has none."""
    entries: list[TokenLogprob] = []
    for begin in range(0, len(rows), ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        for logits, target in zip(_head(model, inputs, body_output, rows[part]), targets[part], strict=True):
            if (what := unusable(float(logits.max()))) is not None:
                return what
            entries.append(token_logprob(logits, target, top))
    return entries


def _head(model: Any, inputs: Mapping[str, Any], body_output: Any, rows: Sequence[int]) -> torch.Tensor:
    """Logits ``[len(rows), vocab_size]``."""
    body = model.get_decoder()
    own = vars(body).get("forward")  # batch invariance gives some modules one beside their class's
    body.forward = lambda *_args, **_options: body_output
    try:
        keep = torch.tensor(rows, dtype=torch.int64, device=model.device)
        logits: torch.Tensor = model(**inputs, logits_to_keep=keep).logits[0]
    finally:
        del body.forward
        if own is not None:
            body.forward = own
    return logits
