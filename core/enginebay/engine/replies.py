"""What the workers' answers to a step must be before the core looks at them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from enginebay.engine.admission.limits import AdmissionLimits
from enginebay.engine.annexes import fault_of_annex
from enginebay.engine.ledger import Row
from enginebay.engine.steps import InFlight
from enginebay.errors import EngineDead
from enginebay.interfaces import Executor
from enginebay.messages import Ack, ModelRunnerOutput, Replies, StepResult

__all__ = ["Generation", "check_output", "fault_of", "fault_of_schedule", "step_result"]


class Generation:
    """The number of the group's rebirths, and the ids of its calls; shared by the core and its executor."""

    def __init__(self, current: int = 0) -> None:
        self.current = current
        self._ids: Iterator[int] = itertools.count(1)

    def next_call_id(self) -> int:
        """An id that no other call of this engine has."""
        return next(self._ids)


def step_result(
    executor: Executor[Any], replies: Replies, step: int, *, output_rank: int, num_ranks: int, name: str
) -> StepResult:
    """The output rank's answer to a step that every rank has answered; the others acknowledge it.

    Raises what a rank reported as failed, and ``EngineDead`` with the executor's ``name`` and the rank that is missing,
    comes twice, is none of ours, or answered with something else.
    """
    results = executor.context.unwrap(replies)
    if num_ranks == 1 == len(results) and replies.replies[0].rank == output_rank and isinstance(results[0], StepResult):
        return results[0]
    by_rank = {reply.rank: result for reply, result in zip(replies.replies, results, strict=True)}
    if len(results) != num_ranks or len(by_rank) != num_ranks or output_rank not in by_rank:
        raise EngineDead(f"the engine stopped: {name}: the answer to step {step} {_ranks_at_fault(replies, num_ranks)}")
    for rank, result in by_rank.items():
        if not isinstance(result, StepResult) and (rank == output_rank or not isinstance(result, Ack)):
            raise EngineDead(f"the engine stopped: rank {rank} answered step {step} with {type(result).__name__}")
    answer = by_rank[output_rank]
    assert isinstance(answer, StepResult), "it was looked at above"
    return answer


def _ranks_at_fault(replies: Replies, num_ranks: int) -> str:
    answered = [reply.rank for reply in replies.replies]
    missing = [rank for rank in range(num_ranks) if rank not in answered]
    if missing:
        return f"lacks rank {missing[0]}"
    strangers = [rank for rank in answered if not 0 <= rank < num_ranks]
    if strangers:
        return f"has rank {strangers[0]}, and there are ranks 0 to {num_ranks - 1}"
    twice = next(rank for rank in answered if answered.count(rank) > 1)
    return f"has rank {twice} twice"


def check_output(output: ModelRunnerOutput, flight: InFlight, runner: str, *, max_tokens: int) -> None:
    """Raise ``EngineDead`` naming the runner when it answers for something that it was not asked.

    ``max_tokens`` is how many tokens it may draw for one request, or one more than its proposals where those are more;
    for a partial prefill it draws none.
    """
    if len(output.request_ids) != len(output.sampled_token_ids):
        raise EngineDead(
            f"the engine stopped: {runner} answered step {flight.step} with {len(output.request_ids)} "
            f"request ids and {len(output.sampled_token_ids)} rows of tokens"
        )
    if output.annex and (fault := fault_of_annex(output.annex)):
        raise EngineDead(f"the engine stopped: {runner} answered step {flight.step} with {fault}")
    if output.faults or output.logprobs or output.prompt_logprobs or output.request_ids != tuple(flight.rows):
        _check_ids(output, flight, runner)
    if not (flight.drafts or flight.partial) and max(map(len, output.sampled_token_ids), default=0) <= max_tokens:
        return
    for request_id, drawn in zip(output.request_ids, output.sampled_token_ids, strict=True):
        most = 0 if request_id in flight.partial else max(max_tokens, 1 + len(flight.drafts.get(request_id, ())))
        if len(drawn) > most:
            why = "its tokens are not all computed yet"
            if most:
                why = f"it declares at most {max_tokens}" if most == max_tokens else f"{most - 1} were proposed"
            raise EngineDead(
                f"the engine stopped: {runner} drew {len(drawn)} tokens for request {request_id!r} "
                f"in step {flight.step}; {why}"
            )


def _check_ids(output: ModelRunnerOutput, flight: InFlight, runner: str) -> None:
    """Every request of the step is answered for, once, and no other; asked unless the answer is the batch as it was."""
    answered = set(output.request_ids)
    told = answered | output.faults.keys() | output.logprobs.keys() | output.prompt_logprobs.keys()
    strangers = sorted(told - flight.rows.keys())
    if strangers or len(answered) != len(output.request_ids):
        what = f"request {strangers[0]!r}, which is not in it" if strangers else "one request twice"
        raise EngineDead(f"the engine stopped: {runner} answered step {flight.step} for {what}")
    missing = sorted(flight.rows.keys() - answered - output.faults.keys())
    if missing:
        raise EngineDead(f"the engine stopped: {runner} answered step {flight.step} without request {missing[0]!r}")


def fault_of(request_id: str, output: ModelRunnerOutput, drawn: Sequence[int], limits: AdmissionLimits) -> str | None:
    """What is wrong with one request alone: the runner says so, or drew a token that the model does not have."""
    if request_id in output.faults:
        return output.faults[request_id] or f"{limits.runner} failed it, and did not say why"
    for token_id in drawn:
        if not 0 <= token_id < limits.vocab_size:
            return f"{limits.runner} drew token {token_id}, outside the vocabulary (0 to {limits.vocab_size - 1})"
    return None


def fault_of_schedule(row: Row, flight: InFlight) -> str | None:
    """What a whole scheduler of API 1.0 cannot know of a request, which it then starts wrongly; it fails alone."""
    if row.params.prompt_logprobs is not None:
        start = min(flight.starts[row.request_id], len(row.prompt_token_ids) - 1)
        if start > row.prompt_logprobs_delivered:
            return (
                f"the scheduler started it on {start} cached tokens, and it asks for the prompt's log-probabilities: "
                "ask without them, or set [cache] prefix_caching = false"
            )
    if row.choice:
        for new in flight.sent.new:
            if new.request_id == row.request_id and new.choice != row.choice:
                return "the scheduler does not tell the runner which choice it draws for: ask for one choice (n = 1)"
    return None
