"""Log-probabilities as the runner sends them: what must hold of them, and which of the prompt's are news. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from enginebay.engine.admission.limits import AdmissionLimits
from enginebay.engine.ledger import Row
from enginebay.messages import ModelRunnerOutput, TokenLogprob

__all__ = ["fault_of_told", "prompt_news"]

_ROUNDING = 1e-3
"""A log-softmax is at most 0; this much above it is rounding."""


def fault_of_told(
    row: Row, drawn: Sequence[int], span: tuple[int, int], output: ModelRunnerOutput, limits: AdmissionLimits
) -> str | None:
    """What is wrong with what the runner tells of a row in a step that computed its tokens ``span[0]`` to ``span[1]``.

    The prompt's token at position p is told by the step that computes the one before it, so the first is never told.
    """
    fault = None
    if row.params.logprobs is not None and drawn:
        entries = output.logprobs.get(row.request_id, ())
        if len(entries) != len(drawn):
            return f"{limits.runner} sent {len(entries)} log-probabilities for {len(drawn)} drawn tokens"
        fault = _fault_of_entries(entries, drawn, row.params.logprobs, limits)
    start, last = span[0], min(span[1], len(row.prompt_token_ids) - 1)
    if fault is not None or row.params.prompt_logprobs is None or last <= start:
        return fault
    chunk = output.prompt_logprobs.get(row.request_id)
    if chunk is None or chunk.start != start + 1 or len(chunk.entries) != last - start:
        sent = "none" if chunk is None else f"{len(chunk.entries)} from {chunk.start} on"
        return (
            f"{limits.runner} was to send the prompt's log-probabilities of positions {start + 1} to {last}, "
            f"and sent {sent}"
        )
    return _fault_of_entries(
        chunk.entries, row.prompt_token_ids[start + 1 : last + 1], row.params.prompt_logprobs, limits
    )


def prompt_news(row: Row, output: ModelRunnerOutput) -> tuple[TokenLogprob, ...]:
    """The prompt's log-probabilities that the client was not sent yet; what was computed again is left out."""
    chunk = output.prompt_logprobs.get(row.request_id)
    if chunk is None or row.params.prompt_logprobs is None:
        return ()
    if row.prompt_logprobs_delivered >= len(row.prompt_token_ids) - 1:
        return ()
    known = row.prompt_logprobs_delivered + 1 - chunk.start
    assert known >= 0, f"request {row.request_id!r}: the prompt's log-probabilities have a gap before {chunk.start}"
    return chunk.entries[known:]


def _fault_of_entries(
    entries: Sequence[TokenLogprob], token_ids: Sequence[int], asked: int, limits: AdmissionLimits
) -> str | None:
    expected = min(asked, limits.vocab_size)
    for entry, token_id in zip(entries, token_ids, strict=True):
        if entry.token_id != token_id:
            return f"{limits.runner} sent the log-probability of token {entry.token_id} in place of token {token_id}"
        if len(entry.top) != expected:
            return (
                f"{limits.runner} sent {len(entry.top)} of the likeliest tokens beside token {token_id}, "
                f"and {expected} were asked for"
            )
        for one, logprob in itertools.chain([(token_id, entry.logprob)], entry.top):
            if not 0 <= one < limits.vocab_size:
                return f"{limits.runner} sent the log-probability of token {one}, which the model does not have"
            if not logprob <= _ROUNDING:  # NaN too
                return f"{limits.runner} sent {logprob} as the log-probability of token {one}"
    return None
