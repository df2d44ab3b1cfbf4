"""Looks on at a scheduler of the mechanics from outside, and keeps its own books of what each step may hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from enginebay.messages import Committed, FinishReason, RunningRequest, SchedulerOutput
from enginebay.scheduling import MechanicsScheduler
from enginebay.testing import CoreLoop

__all__ = ["ScheduleWatch", "watch"]


class ScheduleWatch:
    """The invariants of steps in flight, each by counting; a fault is an ``AssertionError`` that says which."""

    def __init__(self, loop: CoreLoop) -> None:
        self.loop = loop
        self.max_proposals = loop.constraints.max_tokens_per_step - 1
        self.steps: dict[int, SchedulerOutput] = {}
        """Steps that are not committed, oldest first."""
        self.known: dict[str, int] = {}
        """Prompt and committed tokens of the requests that have not ended."""
        self.ended: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self.last_step = -1

    def added(self, request_id: str) -> None:
        request = self.loop.requests[request_id]
        self.known[request_id] = len(request.prompt_token_ids) + len(request.committed_token_ids)

    def most(self, request_id: str) -> int:
        """Prompt and output tokens of a request that runs to its end by length."""
        request = self.loop.requests[request_id]
        return min(len(request.prompt_token_ids) + request.params.max_tokens, self.loop.limits.max_model_len)

    def scheduled(self, output: SchedulerOutput) -> None:
        counts = output.num_scheduled_tokens
        if not (counts or output.finished or output.preempted):
            return
        assert output.step == self.last_step + 1, "steps are numbered in order"
        self.last_step = output.step
        flying = Counter(request_id for step in self.steps.values() for request_id in step.num_scheduled_tokens)
        guessing = {row.request_id for step in self.steps.values() for row in step.running if row.draft_token_ids}
        for request_id in output.preempted:
            assert not flying[request_id], f"{request_id} is preempted with {flying[request_id]} steps in flight"
        self.told.update(output.finished)
        starts = _starts(output)
        assert starts.keys() == counts.keys(), "every row has tokens, and every token a row"
        for request_id, count in counts.items():
            assert request_id in self.known, f"{request_id} has ended, and runs"
            assert count > 0, f"{request_id} is scheduled without a token"
            assert request_id not in guessing, f"{request_id} runs on though proposals of it are not verified"
            end = starts[request_id] + count
            assert end < self.most(request_id), f"the last token of {request_id} is computed, and nobody needs that"
        for row in output.running:
            self._proposals(row, counts[row.request_id], flying)
        draws = {
            request_id for request_id, count in counts.items() if starts[request_id] + count >= self._end(request_id)
        }
        constrained = {one for one in draws if self.loop.requests[one].params.structured is not None}
        assert set(output.constrained) == constrained, "the constrained are those that draw under a grammar"
        if counts:
            self.steps[output.step] = output

    def _end(self, request_id: str) -> int:
        """What is known of a request, with one token for each step in flight that draws."""
        known = self.known[request_id]
        for step in self.steps.values():
            if request_id in step.num_scheduled_tokens:
                known += _starts(step)[request_id] + step.num_scheduled_tokens[request_id] >= known
        return known

    def _proposals(self, row: RunningRequest, count: int, flying: Counter[str]) -> None:
        if row.draft_token_ids:
            assert not flying[row.request_id], f"{row.request_id} gets proposals behind a token that is not known"
            assert len(row.draft_token_ids) <= self.max_proposals, f"too many proposals for {row.request_id}"
            assert count == 1 + len(row.draft_token_ids), f"{row.request_id}: one sure token and its proposals"
            known = self.known[row.request_id]
            assert known + len(row.draft_token_ids) < self.most(row.request_id), "a proposal beyond the end"

    def committed(self, output: SchedulerOutput, committed: Committed) -> None:
        if output.step in self.steps:
            assert next(iter(self.steps)) == output.step, "commits come in the order of the steps"
            del self.steps[output.step]
        for request_id, tokens in committed.token_ids.items():
            self.known[request_id] += len(tokens)
        self.finished(committed.finished)

    def finished(self, request_ids: dict[str, FinishReason] | tuple[str, ...]) -> None:
        for request_id in request_ids:
            if self.known.pop(request_id, None) is not None:
                self.ended[request_id] += 1

    def counters(self) -> None:
        """What the mechanics count of tokens and steps in flight is what the steps say."""
        scheduler = self.loop.scheduler
        assert isinstance(scheduler, MechanicsScheduler)
        state = scheduler._state
        flying = Counter(request_id for step in self.steps.values() for request_id in step.num_scheduled_tokens)
        assert state.requests.keys() == self.known.keys()
        for request_id, record in state.requests.items():
            ahead = self._end(request_id) - self.known[request_id]
            assert record.in_flight == flying[request_id], f"{request_id}: steps in flight"
            assert record.placeholders == ahead, f"{request_id}: {record.placeholders} placeholders, {ahead} tokens"
            assert record.num_acked <= record.num_computed
            assert record.num_tokens == self.known[request_id]
        assert len(state.running) + len(state.line) == len(state.requests)

    def quiet(self) -> None:
        """Everything has ended, once."""
        assert not self.known
        assert not self.steps
        assert set(self.ended.values()) <= {1}
        assert set(self.told.values()) <= {1}


def watch(loop: CoreLoop) -> ScheduleWatch:
    """Look on at everything that the loop's scheduler is asked and told."""
    books = ScheduleWatch(loop)
    scheduler = loop.scheduler
    schedule, update, finish, add = (
        scheduler.schedule,
        scheduler.update_from_output,
        scheduler.finish_requests,
        scheduler.add_request,
    )

    def schedule_() -> SchedulerOutput:
        output = schedule()
        books.scheduled(output)
        books.counters()
        return output

    def update_(output: SchedulerOutput, committed: Committed) -> None:
        update(output, committed)
        books.committed(output, committed)
        books.counters()

    def finish_(request_ids: tuple[str, ...], status: FinishReason) -> None:
        finish(request_ids, status)
        books.finished(request_ids)

    def add_(request: object) -> None:
        add(request)  # type: ignore[arg-type]  # handed through
        books.added(request.request_id)  # type: ignore[attr-defined]  # an EngineRequest

    _replace(scheduler, schedule=schedule_, update_from_output=update_, finish_requests=finish_, add_request=add_)
    return books


def _starts(output: SchedulerOutput) -> dict[str, int]:
    """Where each request of the step begins to compute."""
    starts = {row.request_id: row.num_computed_tokens for row in output.running}
    starts |= {row.request_id: row.num_computed_tokens for row in output.new}
    starts |= {row.request_id: row.num_computed_tokens for row in output.resumed}
    return starts


def _replace(scheduler: object, **methods: Callable[..., object]) -> None:
    for name, method in methods.items():
        setattr(scheduler, name, method)
