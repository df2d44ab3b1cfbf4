"""The scheduler that joins the parts: continuous batching over a policy, with every bound kept for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, final

from enginebay.interfaces import Options, Policy, Scheduler, SchedulerContext
from enginebay.messages import (
    Committed,
    EngineRequest,
    FinishReason,
    SchedulerOutput,
    SchedulerStats,
    StepReport,
)
from enginebay.scheduling._eviction import preempt
from enginebay.scheduling._passes import Passes
from enginebay.scheduling._record import FINISHED, RUNNING, Record
from enginebay.scheduling._state import State

O = TypeVar("O", bound=Options)


@final
class MechanicsScheduler(Scheduler[O]):
    """A ``Policy`` made into a scheduler. Not for subclassing: what varies is the policy.

    Steps may be scheduled before the last one is acknowledged: tokens in flight are counted as placeholders, and a
    request that ends meanwhile keeps its blocks until the last step that may write to them is acknowledged.
    """

    def __init__(self, policy: Policy[O], context: SchedulerContext[O]) -> None:
        super().__init__(context)
        self._state = State(policy, context)
        self._passes = Passes(self._state)
        self._order = 0
        self._next_step = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise TypeError(f"{cls.__name__} subclasses MechanicsScheduler: write a Policy, or a whole Scheduler")

    def add_request(self, request: EngineRequest) -> None:
        """A request that has passed every check of the core; ``check_fits`` is one of them."""
        state = self._state
        assert request.request_id not in state.requests, f"request {request.request_id} is known already"
        record = Record(request, self._order, self.context.limits.max_model_len)
        record.sequence = state.kv.open(
            request.request_id,
            request.prompt_token_ids,
            record.output,
            salt=request.cache_salt,
            adapter=request.adapter,
            reuse=request.params.prompt_logprobs is None,  # they come of computing the prompt
        )
        self._order += 1
        state.requests[request.request_id] = record
        state.gate.enter(record)

    def finish_requests(self, request_ids: Sequence[str], status: FinishReason) -> None:
        """End these requests from outside; ids that are not known are passed over."""
        for request_id in request_ids:
            record = self._state.requests.get(request_id)
            if record is not None:
                self._finish(record, status)

    def schedule(self) -> SchedulerOutput:
        """The next step. One with no tokens and nothing to tell is empty, takes no number and needs no update."""
        state = self._state
        draft = self._passes.fill()
        output, in_flight = draft.close(self._next_step, state.finished_unsaid, state.preempted_unsaid)
        if in_flight.records:
            state.in_flight[output.step] = in_flight
        if in_flight.records or output.finished or output.preempted:
            self._next_step += 1
            state.finished_unsaid.clear()
            state.preempted_unsaid.clear()
        if state.door.on_scheduled is not None:
            for record, tokens in zip(in_flight.records, in_flight.tokens, strict=True):
                state.door.on_scheduled(record, tokens)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, committed: Committed) -> None:
        """What came of a step, oldest first."""
        state = self._state
        step = state.in_flight.pop(scheduler_output.step, None)
        if step is None:  # it held no tokens
            return
        tokens_of, finished, partial = committed.token_ids.get, committed.finished, step.partial
        on_output = state.door.on_output
        for record, tokens in zip(step.records, step.tokens, strict=True):
            record.in_flight -= 1
            if record.status is FINISHED:
                if not record.in_flight:
                    state.kv.close(record.sequence)
                continue
            record.num_acked = acked = record.num_acked + tokens
            drawn = tokens_of(record.request_id, ())
            if drawn:
                record.output += drawn
                if record.fruitless:
                    record.fruitless = 0
                    state.refused = None
                if on_output is not None:
                    on_output(record, drawn)
            if partial or tokens > 1 or len(drawn) != 1:  # else the one token that was expected has come
                draws = record not in partial
                record.expected += len(drawn) - draws
                if draws and (tokens > 1 or not drawn):
                    self._roll_back(record)
                    acked = record.num_acked
            sequence = record.sequence
            if acked >= sequence.publish_at:
                state.kv.publish(sequence, acked)
                state.gate.look(record)
            if acked >= sequence.trim_at:
                state.kv.trim(sequence, acked)
            if finished and record.request_id in finished:
                self._finish(record, finished[record.request_id])

    def preempt_all(self) -> None:
        """Put every running request back into the waiting line and free its blocks. No step may be in flight."""
        for record in reversed(list(self._state.running.values())):
            preempt(self._state, record)
            record.fruitless = 0  # it gave way to nobody

    def has_requests(self) -> bool:
        """Whether anything is unfinished, or the runner has yet to be told who ended."""
        return bool(self._state.requests or self._state.finished_unsaid)

    def make_stats(self) -> SchedulerStats:
        """How it stands now; prefix counters are in tokens, each request counted at its first admission."""
        state, kv = self._state, self._state.kv
        return SchedulerStats(
            num_running=len(state.running),
            num_waiting=len(state.line),
            num_blocks=kv.num_blocks,
            num_free_blocks=kv.num_free_blocks,
            preemptions=state.num_preemptions,
            prefix_queries=kv.prefix_queries,
            prefix_hits=kv.prefix_hits,
            num_cached_blocks=kv.num_cached_blocks,
            evictions=kv.evictions,
        )

    def on_step(self, report: StepReport) -> None:
        """A step ended."""
        if self._state.door.on_step is not None:
            self._state.door.on_step(report)

    def _roll_back(self, record: Record) -> None:
        """Count as computed what stands before the last known token and no more.

        That differs from what was scheduled when proposals were rejected, or when no token came of a step that should
        have drawn one: its last known token is then computed again.
        """
        record.num_computed = min(record.num_computed, record.expected - 1)
        record.num_acked = min(record.num_acked, record.num_tokens - 1)
        self._state.prefilling = True  # it may be the last token that was known when it was admitted

    def _finish(self, record: Record, reason: FinishReason) -> None:
        state = self._state
        del state.requests[record.request_id]
        if record.status is RUNNING:
            del state.running[record.request_id]
            state.refused = None
        else:
            state.line.discard(record)
            if record.request_id in state.preempted_unsaid:  # one word to the runner is enough: it ended
                state.preempted_unsaid.remove(record.request_id)
        record.status = FINISHED
        state.gate.open(record)
        if record.known_to_runner:
            state.finished_unsaid.append(record.request_id)
        if not record.in_flight:  # else the step that may still write to its blocks gives them back
            state.kv.close(record.sequence)
        if state.door.on_finished is not None:
            state.door.on_finished(record, reason)
