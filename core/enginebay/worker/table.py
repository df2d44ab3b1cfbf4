"""The state of requests that a runner needs, kept from the scheduler's differences. Plain Python, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NoReturn

from enginebay.errors import PolicyFailed
from enginebay.messages import (
    ModelRunnerOutput,
    NewRequest,
    PromptLogprobs,
    ResumedRequest,
    RunningRequest,
    SchedulerOutput,
    TokenLogprob,
)
from enginebay.worker.blocks import BlockBook
from enginebay.worker.row import Row, ScheduledRow

__all__ = ["ContradictorySchedule", "RequestTable", "Row", "ScheduledRow"]

_NO_FAULTS: Final[Mapping[str, str]] = MappingProxyType({})
_NO_LOGPROBS: Final[Mapping[str, Sequence[TokenLogprob]]] = MappingProxyType({})
_NO_PROMPT_LOGPROBS: Final[Mapping[str, PromptLogprobs]] = MappingProxyType({})


class ContradictorySchedule(PolicyFailed, ValueError):
    """A schedule that contradicts itself or what was said before: no worker's fault, and no void mends it."""


class RequestTable:
    """Every request that the scheduler has told of and not yet called finished, by id.

    Use: ``begin_step``, compute, ``finish_step``. A step that failed between the two is forgotten by the next
    ``begin_step``; rows of an older generation are dropped when a new one begins. ``begin_step`` raises
    ``ContradictorySchedule``, a ``ValueError`` which names step and request, and ends the engine with the scheduler's
    name; ``finish_step`` raises ``ValueError`` for answers that cannot be.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._batch: list[ScheduledRow] = []
        self._generation = 0
        self._step = -1
        self._failed: dict[str, str] = {}
        self._book = BlockBook()

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._rows

    def get(self, request_id: str) -> Row | None:
        """The row of a request, running or preempted; None when the table does not hold it."""
        return self._rows.get(request_id)

    def limit_blocks(
        self, num_blocks: int, block_sizes: Sequence[int], windows: Sequence[int | None] | None = None
    ) -> None:
        """From now on only blocks 0 to ``num_blocks`` - 1 are there, all empty, in groups of these block sizes. A
        request has those that it writes to, and no other does. Until then whatever blocks are named are taken.

        ``windows``: how many tokens a token of each group sees, its own included, None for all. Where they are not
        told, every group may have one, and less of what a schedule says of blocks can be looked at.
        """
        for row in self._rows.values():
            row.block_ids = [[] for _ in row.block_ids]
            row.room = 0
        self._book = BlockBook(num_blocks, block_sizes, windows)

    def begin_step(self, scheduler_output: SchedulerOutput) -> list[ScheduledRow]:
        """Take in what changed, and return the batch in the order of ``num_scheduled_tokens``.

        A new generation begins with an empty table: the steps before it count as void, every request that goes on
        comes again as a new one, and whatever else a runner keeps of requests or blocks has to be forgotten too.
        """
        rows = self._rows
        self._step = scheduler_output.step
        if scheduler_output.generation != self._generation:
            rows.clear()
            self._failed.clear()
            self._book.clear()
            self._generation = scheduler_output.generation
        self._batch = []
        for request_id in scheduler_output.preempted:
            row = self._known(request_id, "preempted")
            row.parked = True
            self._book.leave(row)
            row.block_ids = [[] for _ in row.block_ids]
            row.num_computed_tokens = 0
        for request_id in scheduler_output.finished:
            if (ended := rows.pop(request_id, None)) is not None:
                self._book.leave(ended)
                self._failed.pop(request_id, None)
        present: dict[str, Row] = {}
        drafts: dict[str, tuple[int, ...]] = {}
        for new in scheduler_output.new:
            present[new.request_id] = self._add(new)
        for resumed in scheduler_output.resumed:
            present[resumed.request_id] = self._resume(resumed)
        for running in scheduler_output.running:
            present[running.request_id] = self._advance(running)
            if running.draft_token_ids:
                drafts[running.request_id] = running.draft_token_ids
        if len(present) != len(scheduler_output.new) + len(scheduler_output.resumed) + len(scheduler_output.running):
            self._refuse_twice(scheduler_output)
        self._batch = [
            self._schedule(present, request_id, num_tokens, drafts.get(request_id, ()))
            for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items()
        ]
        if len(present) != len(self._batch):
            idle = next(request_id for request_id in present if request_id not in scheduler_output.num_scheduled_tokens)
            raise self._refused(idle, "is in the step's lists but has no tokens scheduled")
        return list(self._batch)

    def finish_step(
        self,
        sampled: Mapping[str, Sequence[int]],
        faults: Mapping[str, str] = _NO_FAULTS,
        *,
        logprobs: Mapping[str, Sequence[TokenLogprob]] = _NO_LOGPROBS,
        prompt_logprobs: Mapping[str, PromptLogprobs] = _NO_PROMPT_LOGPROBS,
    ) -> ModelRunnerOutput:
        """Remember the drawn tokens, and return the step's output for every request of it, in batch order.

        ``sampled`` maps request ids to the tokens drawn: none, one, or several; ``faults`` maps a request id to what
        went wrong with it alone: nothing else of it is kept, and each later step that it stands in, having been sent
        before that was known, answers with the fault again. ``logprobs`` has one entry per token drawn of the requests
        that asked, ``prompt_logprobs`` what the step computed of their prompts.
        """
        batch, self._batch = self._batch, []
        in_step = {scheduled.row.request_id for scheduled in batch}
        if self._failed:
            faults = {**{one: fault for one, fault in self._failed.items() if one in in_step}, **faults}
        for told in (sampled, faults, logprobs, prompt_logprobs):
            if not told.keys() <= in_step:
                stranger = next(request_id for request_id in told if request_id not in in_step)
                raise self._fault(stranger, "got an answer and is not part of the step")
        request_ids, drawn = [], []
        for scheduled in batch:
            row, request_id = scheduled.row, scheduled.row.request_id
            token_ids: tuple[int, ...] = ()
            if request_id not in faults:
                token_ids = tuple(sampled.get(request_id, ()))
                if token_ids and not scheduled.samples:
                    raise self._fault(request_id, f"drew {len(token_ids)} tokens in the middle of its known tokens")
                if scheduled.draft_token_ids:
                    self._check_verified(scheduled, token_ids)
                count = len(logprobs.get(request_id, token_ids))
                if count != len(token_ids):
                    raise self._fault(request_id, f"got {count} log-probabilities for {len(token_ids)} tokens")
                row.token_ids.extend(token_ids)
            if scheduled.samples:
                row.owes = not token_ids
            row.unsure = 0 if token_ids else len(scheduled.draft_token_ids)
            row.num_computed_tokens += scheduled.num_tokens
            if scheduled.draft_token_ids:  # of the proposals, what was accepted
                row.num_computed_tokens -= len(scheduled.draft_token_ids) - max(0, len(token_ids) - 1)
            request_ids.append(request_id)
            drawn.append(token_ids)
        if faults:
            self._failed.update(faults)
        return ModelRunnerOutput(
            request_ids=tuple(request_ids),
            sampled_token_ids=tuple(drawn),
            faults=dict(faults) if faults else {},
            logprobs={k: tuple(entries) for k, entries in logprobs.items() if k not in faults},
            prompt_logprobs={k: chunk for k, chunk in prompt_logprobs.items() if k not in faults},
        )

    def learn(self, row: Row, token_ids: Sequence[int]) -> None:
        """These tokens were drawn elsewhere for a row of a step that was finished without them.

        None at all: it is at fault there. Until the row is told, nothing may come of the request but the end.
        """
        if self._rows.get(row.request_id) is row:
            row.token_ids.extend(token_ids)
            row.owes = False
            if not token_ids:
                self._failed[row.request_id] = "its logits are at fault"

    def _add(self, new: NewRequest) -> Row:
        if new.request_id in self._rows:
            raise self._refused(new.request_id, "is announced as new, and the runner holds it already")
        row = Row(
            request_id=new.request_id,
            token_ids=list(new.token_ids),
            num_prompt_tokens=new.num_prompt_tokens,
            params=new.params,
            seed=new.seed,
            choice=new.choice,
            block_ids=[[] for _ in new.block_ids],
            num_computed_tokens=new.num_computed_tokens,
            floor=new.num_computed_tokens,
        )
        self._give(row, new.block_ids)
        self._rows[new.request_id] = row
        return row

    def _resume(self, resumed: ResumedRequest) -> Row:
        row = self._known(resumed.request_id, "resumed")
        self._book.leave(row)
        row.parked = row.owes = False
        row.token_ids = list(resumed.token_ids)
        row.block_ids = [[] for _ in resumed.block_ids]
        row.num_computed_tokens = row.floor = resumed.num_computed_tokens
        row.unsure = 0
        self._give(row, resumed.block_ids)
        return row

    def _advance(self, running: RunningRequest) -> Row:
        row = self._known(running.request_id, "running")
        if row.parked:
            raise self._refused(running.request_id, "is listed as running, and was preempted and not resumed")
        if running.num_computed_tokens != row.num_computed_tokens:
            self._move(row, running.num_computed_tokens)
        if running.new_token_ids:
            if not row.owes:
                raise self._refused(row.request_id, "is told of tokens, and it has drawn all that it had to")
            row.token_ids.extend(running.new_token_ids)
            row.owes = False
        if running.new_block_ids:
            self._give(row, running.new_block_ids)
        return row

    def _move(self, row: Row, start: int) -> None:
        """It goes on elsewhere than where its last step ended: between what it found and what it computed."""
        computed = row.num_computed_tokens
        if not row.floor <= start <= computed + row.unsure:
            raise self._refused(
                row.request_id,
                f"is to compute tokens from {start} on, and {computed} are computed, "
                f"of which it found {row.floor} in the cache",
            )
        row.num_computed_tokens, row.unsure = start, 0

    def _schedule(
        self, present: dict[str, Row], request_id: str, num_tokens: int, drafts: tuple[int, ...]
    ) -> ScheduledRow:
        row = present.get(request_id)
        if row is None:
            raise self._refused(request_id, "has tokens scheduled and is in none of new, running and resumed")
        end, known = row.num_computed_tokens + num_tokens - len(drafts), len(row.token_ids)
        if end > known and request_id in self._failed:  # who scheduled it did not know by then: any token will do
            row.token_ids += row.token_ids[-1:] * (end - known)
            known = end
        if drafts and end != known:
            raise self._refused(
                request_id,
                f"has {len(drafts)} proposals, which stand behind its {known} known tokens, and is to compute "
                f"{num_tokens} tokens from {row.num_computed_tokens} on",
            )
        if num_tokens < 1 or end > known or row.num_computed_tokens < 0:
            refused = self._fault if row.owes else self._refused  # who scheduled it may not know by then
            raise refused(
                request_id,
                f"is to compute {num_tokens} tokens from {row.num_computed_tokens} on, and {known} tokens are known",
            )
        if end + len(drafts) > row.room:
            raise self._refused(
                request_id, f"is to compute tokens up to {end + len(drafts)}, and its blocks hold {row.room}"
            )
        return ScheduledRow(row, num_tokens, end == known, drafts)

    def _check_verified(self, scheduled: ScheduledRow, token_ids: tuple[int, ...]) -> None:
        """Every token but the last drawn one must be the one that was proposed there."""
        accepted = len(token_ids) - 1
        if accepted > len(scheduled.draft_token_ids) or (
            accepted > 0 and token_ids[:accepted] != scheduled.draft_token_ids[:accepted]
        ):
            proposed = ", ".join(map(str, scheduled.draft_token_ids))
            drawn = ", ".join(map(str, token_ids))
            raise self._fault(scheduled.row.request_id, f"drew {drawn} where {proposed} were proposed")

    def _give(self, row: Row, told: tuple[tuple[int, ...], ...]) -> None:
        if fault := self._book.give(row, told):
            raise self._refused(row.request_id, fault)

    def _refuse_twice(self, scheduler_output: SchedulerOutput) -> NoReturn:
        out = scheduler_output
        ids = [one.request_id for told in (out.new, out.resumed, out.running) for one in told]
        raise self._refused(next(one for one in ids if ids.count(one) > 1), "stands twice in the step's lists")

    def _known(self, request_id: str, what: str) -> Row:
        row = self._rows.get(request_id)
        if row is None:
            raise self._refused(request_id, f"is listed as {what}, and the runner does not hold it")
        return row

    def _refused(self, request_id: str, what: str) -> ContradictorySchedule:
        return ContradictorySchedule(str(self._fault(request_id, what)))

    def _fault(self, request_id: str, what: str) -> ValueError:
        return ValueError(f"step {self._step} of generation {self._generation}: request {request_id!r} {what}")
