"""The step that is being drawn up: what is left of its bounds, who runs, and the message that comes of it."""

from __future__ import annotations

from typing import final

from enginebay.kvcache import PrefixHit
from enginebay.messages import NewRequest, ResumedRequest, RunningRequest, SchedulerOutput
from enginebay.scheduling._bounds import Bounds
from enginebay.scheduling._record import Record

InFlight = tuple[Record, int, bool]
"""(request, its tokens in the step, whether it draws one)."""


@final
class Draft:
    """What is left of the bounds, and the rows so far. A row whose ``draft_tokens`` fell to 0 was given back."""

    __slots__ = ("admitted", "blocked", "context_left", "gave_way", "num_rows", "prefills_left", "rows", "tokens_left")

    def __init__(self, bounds: Bounds) -> None:
        self.tokens_left = bounds.tokens
        self.context_left = bounds.context
        self.prefills_left = bounds.prefills
        self.rows: list[Record] = []
        self.admitted: list[Record] = []
        self.num_rows = 0
        self.blocked = False
        self.gave_way = False

    @property
    def empty(self) -> bool:
        """Whether nothing runs in this step."""
        return self.num_rows == 0

    def run(self, record: Record, tokens: int, blocks: tuple[tuple[int, ...], ...], *, prefill: bool) -> None:
        """A running request gets tokens, and perhaps blocks, in this step."""
        record.draft_tokens = tokens
        record.draft_blocks = blocks
        record.draft_prefill = prefill
        self.tokens_left -= tokens
        self.context_left -= record.num_computed + tokens
        self.prefills_left -= prefill
        self.rows.append(record)
        self.num_rows += 1

    def start(self, record: Record, tokens: int, hit: PrefixHit) -> None:
        """An admitted request gets its first tokens after those that the cache had."""
        record.num_computed = hit.num_tokens
        self.run(record, tokens, (), prefill=True)
        self.admitted.append(self.rows.pop())

    def give_back(self, record: Record) -> None:
        """A victim's tokens and budget are free again."""
        if record.draft_tokens:
            self.tokens_left += record.draft_tokens
            self.context_left += record.num_computed + record.draft_tokens
            self.prefills_left += record.draft_prefill
            record.draft_tokens = 0
            self.num_rows -= 1

    def close(self, step: int, finished: list[str], preempted: list[str]) -> tuple[SchedulerOutput, list[InFlight]]:
        """The message of this step; each request's computed tokens advance."""
        new: list[NewRequest] = []
        running: list[RunningRequest] = []
        resumed: list[ResumedRequest] = []
        counts: dict[str, int] = {}
        in_flight: list[InFlight] = []
        for record in self.rows:
            tokens = record.draft_tokens
            if tokens:
                running.append(
                    RunningRequest(
                        request_id=record.request_id,
                        num_computed_tokens=record.num_computed,
                        new_block_ids=record.draft_blocks,
                    )
                )
                counts[record.request_id] = tokens
                in_flight.append(_advance(record, tokens))
        for record in sorted(self.admitted, key=_unknown):  # resumed before new, otherwise in order of admission
            if record.known_to_runner:
                resumed.append(_resumed(record))
            else:
                new.append(_new(record))
                record.known_to_runner = True
            counts[record.request_id] = record.draft_tokens
            in_flight.append(_advance(record, record.draft_tokens))
        output = SchedulerOutput(
            step=step,
            new=tuple(new),
            running=tuple(running),
            resumed=tuple(resumed),
            finished=tuple(finished),
            preempted=tuple(preempted),
            num_scheduled_tokens=counts,
        )
        return output, in_flight


def _unknown(record: Record) -> bool:
    return not record.known_to_runner


def _advance(record: Record, tokens: int) -> InFlight:
    end = record.num_computed + tokens
    record.num_computed = end
    record.draft_tokens = 0
    record.in_flight += 1
    draws = end >= record.num_tokens + record.placeholders
    if draws:
        record.placeholders += 1
    return record, tokens, draws


def _new(record: Record) -> NewRequest:
    request = record.request
    return NewRequest(
        request_id=record.request_id,
        token_ids=record.token_ids,
        num_prompt_tokens=len(request.prompt_token_ids),
        params=request.params,
        seed=request.seed,
        block_ids=record.sequence.block_ids,
        num_computed_tokens=record.num_computed,
        choice=request.choice,
        extra=request.extra,
    )


def _resumed(record: Record) -> ResumedRequest:
    return ResumedRequest(
        request_id=record.request_id,
        token_ids=record.token_ids,
        block_ids=record.sequence.block_ids,
        num_computed_tokens=record.num_computed,
    )
