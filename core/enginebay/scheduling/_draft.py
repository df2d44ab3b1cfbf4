"""The step that is being drawn up: what is left of its bounds, who runs, and the message that comes of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, final

from enginebay.kvcache import PrefixHit
from enginebay.messages import NewRequest, ResumedRequest, RunningRequest, SchedulerOutput
from enginebay.scheduling._bounds import Bounds
from enginebay.scheduling._record import Record


class StepInFlight(NamedTuple):
    """The requests of a step, and how many tokens each has in it: two lists of one length. ``partial`` are those that
    do not reach the end of what is known of them, and so draw nothing."""

    records: list[Record]
    tokens: list[int]
    partial: set[Record]


@final
class Draft:
    """What is left of the bounds, and the rows so far. A row whose ``draft_tokens`` fell to 0 was given back.

    ``still`` are running requests that get nothing in this step, since they are to give way once theirs are done.
    """

    __slots__ = (
        "_tokens",
        "admitted",
        "blocked",
        "context_left",
        "gave_way",
        "given_back",
        "prefills_left",
        "rows",
        "still",
        "tokens_left",
    )

    def __init__(self, bounds: Bounds) -> None:
        self._tokens = bounds.tokens
        self.tokens_left = bounds.tokens
        self.context_left = bounds.context
        self.prefills_left = bounds.prefills
        self.rows: list[Record] = []
        self.admitted: list[Record] = []
        self.still: set[Record] = set()
        self.given_back = 0
        self.blocked = False
        self.gave_way = False

    @property
    def empty(self) -> bool:
        """Whether nothing runs in this step."""
        return self.tokens_left == self._tokens

    @property
    def num_rows(self) -> int:
        """Running requests that have tokens in this step."""
        return len(self.rows) - self.given_back

    @property
    def disturbed(self) -> bool:
        """Whether some running request is to get nothing more in this step."""
        return self.gave_way or bool(self.still)

    def run(self, record: Record, tokens: int) -> None:
        """A running request gets tokens in this step, its proposals counted."""
        record.draft_tokens = tokens
        self._spend(record)
        self.rows.append(record)

    def start(self, record: Record, tokens: int, hit: PrefixHit) -> None:
        """An admitted request gets its first tokens after those that the cache had."""
        record.num_computed = hit.num_tokens
        record.draft_blocks = ()
        record.draft_tokens = tokens
        self._spend(record)
        self.admitted.append(record)

    def give_back(self, record: Record) -> None:
        """A victim's tokens and budget are free again."""
        if record.draft_tokens:
            self._spend(record, sign=-1)
            self.given_back += 1
            record.draft_tokens = 0
            record.draft_proposals = ()

    def left_without(self, victims: Iterable[Record]) -> tuple[int, int]:
        """The tokens of the step and of context that would be left if these gave theirs back."""
        tokens, context = self.tokens_left, self.context_left
        for record in victims:
            if record.draft_tokens:
                tokens += record.draft_tokens
                context += record.num_computed + record.draft_tokens
        return tokens, context

    def stand_still(self, record: Record) -> None:
        """The request gets no tokens in this step, whether it had some already or not. Blocks that it got it keeps."""
        self.give_back(record)
        self.still.add(record)

    def _spend(self, record: Record, sign: int = 1) -> None:
        self.tokens_left -= sign * record.draft_tokens
        self.context_left -= sign * (record.num_computed + record.draft_tokens)
        self.prefills_left -= sign * record.prefills

    def close(self, step: int, finished: list[str], preempted: list[str]) -> tuple[SchedulerOutput, StepInFlight]:
        """The message of this step; each request's computed tokens advance."""
        rows = [record for record in self.rows if record.draft_tokens] if self.given_back else self.rows
        running = [
            _running(record)
            if record.draft_blocks or record.draft_proposals
            else RunningRequest(request_id=record.request_id, num_computed_tokens=record.num_computed)
            for record in rows
        ]
        resumed: tuple[ResumedRequest, ...] = ()
        new: tuple[NewRequest, ...] = ()
        if self.admitted:
            known = [record for record in self.admitted if record.known_to_runner]
            unknown = [record for record in self.admitted if not record.known_to_runner]
            resumed, new = tuple(map(_resumed, known)), tuple(map(_new, unknown))
            rows = [*rows, *known, *unknown]
        counts, partial, constrained = _advance(rows)
        output = SchedulerOutput(
            step=step,
            new=new,
            running=tuple(running),
            resumed=resumed,
            finished=tuple(finished),
            preempted=tuple(preempted),
            num_scheduled_tokens=counts,
            constrained=tuple(constrained),
        )
        return output, StepInFlight(rows, list(counts.values()), partial)


def _advance(rows: list[Record]) -> tuple[dict[str, int], set[Record], list[str]]:
    """Count a step's tokens as computed; returns those of each request, who draws nothing, and who under a grammar."""
    counts: dict[str, int] = {}
    partial: set[Record] = set()
    constrained: list[str] = []
    for record in rows:
        tokens, known = record.draft_tokens, record.expected
        record.num_computed = end = record.num_computed + tokens
        record.draft_tokens = 0
        record.in_flight += 1
        counts[record.request_id] = tokens
        if end < known:
            partial.add(record)
            continue
        record.expected = known + 1
        if record.constrained:
            constrained.append(record.request_id)
    return counts, partial, constrained


def _running(record: Record) -> RunningRequest:
    """With blocks or proposals, which are said once."""
    blocks, proposals = record.draft_blocks, record.draft_proposals
    record.draft_blocks, record.draft_proposals = (), ()
    return RunningRequest(
        request_id=record.request_id,
        num_computed_tokens=record.num_computed,
        new_block_ids=blocks,
        draft_token_ids=proposals,
    )


def _new(record: Record) -> NewRequest:
    request = record.request
    record.known_to_runner = True
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
