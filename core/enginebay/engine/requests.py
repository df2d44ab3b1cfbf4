"""Every live request with what is derived beside its ledger row: text state, timeline, span. Opens, commits, ends."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry.trace import Link

from enginebay.engine.admission.limits import AdmissionLimits
from enginebay.engine.commit import DetokenizerFactory, TextState, trim
from enginebay.engine.ledger import Ledger, Row
from enginebay.engine.logprobs import fault_of_told, prompt_news
from enginebay.engine.replies import fault_of, fault_of_schedule
from enginebay.engine.spans import RequestSpans, Timeline, link_to
from enginebay.engine.steps import Batch, InFlight, starts_of
from enginebay.errors import PolicyFailed
from enginebay.messages import (
    Committed,
    EngineRequest,
    FinishReason,
    ModelRunnerOutput,
    NewRequest,
    RequestOutput,
    RequestSummary,
    ResumedRequest,
    SchedulerOutput,
)

__all__ = ["Requests"]

_log = logging.getLogger(__name__)

_MANY_DEADLINES: Final = 64
"""Beyond twice the live requests and these, the deadlines are mostly of requests that have ended."""


class Requests:
    """The live requests. What a row's end needs is done in one place, so that no map keeps a dead one.

    ``num_prefilled`` counts the known tokens that were sent to be computed for the first time, ``busy_since`` is when
    a request came while there was none (monotonic seconds).
    """

    def __init__(
        self,
        *,
        spans: RequestSpans,
        detokenizer: DetokenizerFactory,
        eos_token_ids: frozenset[int],
        max_model_len: int,
        on_finished: Callable[[RequestSummary], None],
    ) -> None:
        self.ledger = Ledger()
        self.num_finished = 0
        self.num_tokens = 0
        self.num_prefilled = 0
        self.busy_since = 0.0
        self._spans = spans
        self._detokenizer = detokenizer
        self._eos_token_ids = eos_token_ids
        self._max_model_len = max_model_len
        self._on_finished = on_finished
        self._texts: dict[str, TextState] = {}
        self._timelines: dict[str, Timeline] = {}
        self._computed: dict[str, int] = {}
        self._ahead: dict[str, int] = {}
        """Tokens that steps in flight will draw."""
        self._deadlines: list[tuple[float, int, str]] = []
        self._outputs: list[RequestOutput] = []

    def __len__(self) -> int:
        return len(self.ledger)

    @property
    def progress(self) -> int:
        """Grows whenever a token was committed, a request ended, or one was computed further than ever before."""
        return self.num_tokens + self.num_finished + self.num_prefilled

    @property
    def has_outputs(self) -> bool:
        """Whether something waits to be taken."""
        return bool(self._outputs)

    def take_outputs(self) -> list[RequestOutput]:
        """The deltas since the last time, in the order in which they came to exist."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def open(self, request: EngineRequest, *, operation: str, now_ns: int) -> Row:
        """A row and its companions for a request that was admitted; when one cannot be made, there is none of them."""
        text = TextState(request.params, self._detokenizer(request.params.skip_special_tokens))
        timeline = self._spans.open(request, operation, now_ns)
        if not len(self.ledger):
            self.busy_since = request.arrival
        row = self.ledger.open(request)
        self._texts[row.request_id] = text
        self._timelines[row.request_id] = timeline
        if row.deadline is not None:
            heapq.heappush(self._deadlines, (row.deadline, row.arrival_number, row.request_id))
        return row

    def observe(self, sent: SchedulerOutput, now_ns: int, scheduler: str) -> Batch:
        """Note what a schedule says of each request."""
        for request_id in sent.preempted:
            if (row := self.ledger.get(request_id)) is not None:
                row.preemptions += 1
                self._timelines[request_id].event("preempted", now_ns)
        begins: tuple[NewRequest | ResumedRequest, ...] = (*sent.new, *sent.resumed)
        for begun in begins:
            if (row := self.ledger.get(begun.request_id)) is None:
                continue
            if row.request_id in self._computed:  # also as new, by a fresh scheduler
                row.recomputed_tokens += max(0, self._computed[row.request_id] - begun.num_computed_tokens)
            else:
                row.cached_tokens = min(begun.num_computed_tokens, len(row.prompt_token_ids))
        batch = Batch({}, starts_of(sent), {})
        for request_id, count in sent.num_scheduled_tokens.items():
            known, start = self.ledger.get(request_id), batch.starts.get(request_id)
            if known is None or start is None:
                fault = "which has ended or never came" if known is None else "and did not say how it runs"
                raise PolicyFailed(f"{scheduler} scheduled request {request_id!r} in step {sent.step}, {fault}")
            ahead, num_known = self._ahead.get(request_id, 0), len(known.prompt_token_ids) + len(known.committed)
            batch.rows[request_id] = (known, len(known.committed) + ahead)
            before, end = self._computed.get(request_id, 0), start + count
            if end >= num_known + ahead:
                self._ahead[request_id] = ahead + 1
                batch.drawing[request_id] = None
            if end > before:
                self._computed[request_id] = end
                if before < num_known:
                    self.num_prefilled += min(end, num_known) - before
            timeline = self._timelines[request_id]
            timeline.last_step = sent.step
            if timeline.scheduled_ns is None:
                timeline.scheduled_ns, timeline.first_step = now_ns, sent.step
                timeline.event("scheduled", now_ns)
        return batch

    def settle(self, flight: InFlight, output: ModelRunnerOutput, limits: AdmissionLimits, now_ns: int) -> Committed:
        """Make a step's drawn tokens exist, row by row; returns what the scheduler is told. Nothing in here waits."""
        drawn_by_id = dict(zip(output.request_ids, output.sampled_token_ids, strict=True))
        recorded = flight.context is not None
        tokens: dict[str, tuple[int, ...]] = {}
        finished: dict[str, FinishReason] = {}
        for request_id, (row, offset) in flight.rows.items():
            if row.finish is not None:  # aborted while the step ran
                continue
            if request_id in flight.drawing:
                self._ahead[request_id] -= 1
            drawn = drawn_by_id.get(request_id, ())
            fault = fault_of(request_id, output, drawn, limits) or fault_of_schedule(row, flight)
            if not fault and (row.params.logprobs is not None or row.params.prompt_logprobs is not None):
                start = flight.starts[request_id]
                end = start + flight.sent.num_scheduled_tokens[request_id]
                fault = fault_of_told(row, drawn, (start, end), output, limits)
            link = self._link_of_ending(request_id, flight) if recorded else None
            finish: FinishReason | None = None
            if fault:
                finish = FinishReason.ERROR
                self.end(row, finish, now_ns, error=fault)
            elif drawn:
                tokens[request_id], finish = self._commit(row, offset, drawn, output, now_ns)
            elif news := prompt_news(row, output):
                self._outputs.append(self.ledger.commit(row, offset, (), prompt_logprobs=news))
            if finish is not None:
                finished[request_id] = finish
                if link is not None:
                    flight.links.append(link)
        return Committed(token_ids=tokens, finished=finished)

    def void(self, now_ns: int) -> list[EngineRequest]:
        """No step in flight happened. Returns the live requests, in order of arrival, for a fresh scheduler."""
        self._ahead.clear()
        for row in self.ledger:
            row.recoveries += 1
            self._timelines[row.request_id].event("requeued", now_ns)
        return [row.request() for row in self.ledger]

    def _commit(
        self, row: Row, offset: int, drawn: Sequence[int], output: ModelRunnerOutput, now_ns: int
    ) -> tuple[tuple[int, ...], FinishReason | None]:
        """Trim what was drawn, and make the rest exist; returns it, and why the row ended, if it did."""
        taken = trim(
            drawn,
            params=row.params,
            text=self._texts[row.request_id],
            num_prompt_tokens=len(row.prompt_token_ids),
            num_output_tokens=offset,
            eos_token_ids=self._eos_token_ids,
            max_model_len=self._max_model_len,
        )
        logprobs = () if row.params.logprobs is None else output.logprobs[row.request_id][: len(taken.token_ids)]
        self._outputs.append(
            self.ledger.commit(
                row,
                offset,
                taken.token_ids,
                text=taken.text,
                logprobs=logprobs,
                prompt_logprobs=prompt_news(row, output),
                finish=taken.finish,
                stop_reason=taken.stop_reason,
            )
        )
        self.num_tokens += len(taken.token_ids)
        timeline = self._timelines[row.request_id]
        if timeline.first_token_ns is None:
            timeline.first_token_ns = now_ns
            timeline.event("first_token", now_ns)
        if row.finish is not None:
            self._close(row, now_ns)
        return taken.token_ids, taken.finish

    def end(self, row: Row, finish: FinishReason, now_ns: int, *, error: str | None = None) -> None:
        """End a row by other means than its tokens; text that was held back goes out with it."""
        may_end = len(row.committed) >= row.params.min_tokens
        text, _ = self._texts[row.request_id].finish(may_end=may_end)
        self._outputs.append(self.ledger.end(row, finish, text=text, error=error))
        self._close(row, now_ns)

    def end_all(self, finish: FinishReason, now_ns: int, *, error: str | None = None) -> None:
        """End every row, when the engine ends: one whose end fails is reported, and keeps no other from its own."""
        for row in self.ledger:
            try:
                self.end(row, finish, now_ns, error=error)
            except Exception as failed:
                _log.warning("ending request %r failed: %s: %s", row.request_id, type(failed).__name__, failed)

    def expired(self, now: float) -> list[Row]:
        """The live rows whose deadline has passed."""
        rows = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number, request_id = heapq.heappop(self._deadlines)
            row = self.ledger.get(request_id)
            if row is not None and row.arrival_number == number:
                rows.append(row)
        return rows

    def link_step(self, flight: InFlight) -> None:
        """Tie a recorded step and its requests in both directions: those that join here, and each one's last."""
        if flight.context is None:
            return
        for request_id in flight.rows:
            timeline = self._timelines[request_id]
            timeline.last_step_context = flight.context
            if timeline.first_step == flight.step:
                timeline.first_step_context = flight.context
                flight.links.append(link_to(timeline))

    def _link_of_ending(self, request_id: str, flight: InFlight) -> Link | None:
        """The link for a recorded step in which the request may end; None when the step has it already."""
        timeline = self._timelines[request_id]
        return None if timeline.first_step == flight.step else link_to(timeline)

    def _close(self, row: Row, now_ns: int) -> None:
        self.num_finished += 1
        del self._texts[row.request_id]
        self._computed.pop(row.request_id, None)
        self._ahead.pop(row.request_id, None)
        if len(self._deadlines) > 2 * len(self.ledger) + _MANY_DEADLINES:
            self._deadlines = [
                (live.deadline, live.arrival_number, live.request_id)
                for live in self.ledger
                if live.deadline is not None
            ]
            heapq.heapify(self._deadlines)
        self._on_finished(self._spans.close(row, self._timelines.pop(row.request_id), now_ns))
