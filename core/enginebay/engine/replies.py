"""What the workers' answers to a step must be before the core looks at them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from enginebay.engine.admission import AdmissionLimits
from enginebay.engine.steps import InFlight
from enginebay.errors import EngineDead
from enginebay.interfaces import Executor
from enginebay.messages import ModelRunnerOutput, Replies, StepResult

__all__ = ["Generation", "check_output", "fault_of", "step_result"]


class Generation:
    """The number of the group's rebirths, and the ids of its calls; shared by the core and its executor."""

    def __init__(self) -> None:
        self.current = 0
        self._ids: Iterator[int] = itertools.count(1)

    def next_call_id(self) -> int:
        """An id that no other call of this engine has."""
        return next(self._ids)


def step_result(executor: Executor[Any], replies: Replies, output_rank: int, step: int) -> StepResult:
    """The output rank's answer to a step; what any rank reported as failed is raised."""
    results = executor.context.unwrap(replies)
    for reply, result in zip(replies.replies, results, strict=True):
        if reply.rank == output_rank:
            if not isinstance(result, StepResult):
                raise EngineDead(f"rank {output_rank} answered step {step} with {type(result).__name__}")
            return result
    raise EngineDead(f"rank {output_rank}, which returns the tokens, did not answer step {step}")


def check_output(output: ModelRunnerOutput, flight: InFlight, runner: str, *, max_tokens: int) -> None:
    """Raise ``EngineDead`` naming the runner when it answers for something that it was not asked.

    ``max_tokens`` is how many tokens it may draw for one request; for a partial prefill it draws none.
    """
    if len(output.request_ids) != len(output.sampled_token_ids):
        raise EngineDead(
            f"the engine stopped: {runner} answered step {flight.step} with {len(output.request_ids)} "
            f"request ids and {len(output.sampled_token_ids)} rows of tokens"
        )
    answered = set(output.request_ids)
    strangers = sorted((answered | output.faults.keys()) - flight.rows.keys())
    if strangers or len(answered) != len(output.request_ids):
        what = f"request {strangers[0]!r}, which is not in it" if strangers else "one request twice"
        raise EngineDead(f"the engine stopped: {runner} answered step {flight.step} for {what}")
    missing = sorted(flight.rows.keys() - answered - output.faults.keys())
    if missing:
        raise EngineDead(f"the engine stopped: {runner} answered step {flight.step} without request {missing[0]!r}")
    for request_id, drawn in zip(output.request_ids, output.sampled_token_ids, strict=True):
        most = max_tokens if request_id in flight.drawing else 0
        if len(drawn) > most:
            why = f"it declares at most {max_tokens}" if most else "its tokens are not all computed yet"
            raise EngineDead(
                f"the engine stopped: {runner} drew {len(drawn)} tokens for request {request_id!r} "
                f"in step {flight.step}; {why}"
            )


def fault_of(request_id: str, output: ModelRunnerOutput, drawn: Sequence[int], limits: AdmissionLimits) -> str | None:
    """What is wrong with one request alone: the runner says so, or drew a token that the model does not have."""
    if request_id in output.faults:
        return output.faults[request_id] or f"{limits.runner} failed it, and did not say why"
    for token_id in drawn:
        if not 0 <= token_id < limits.vocab_size:
            return f"{limits.runner} drew token {token_id}, outside the vocabulary (0 to {limits.vocab_size - 1})"
    return None
