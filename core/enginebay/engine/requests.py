"""Every live request with what is derived beside its ledger row: text state, timeline, span. Opens, commits, ends."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from opentelemetry.trace import Link

from enginebay.engine.commit import DetokenizerFactory, TextState, trim
from enginebay.engine.ledger import Ledger, Row
from enginebay.engine.spans import RequestSpans, Timeline, link_to
from enginebay.engine.steps import InFlight
from enginebay.errors import PolicyFailed
from enginebay.messages import EngineRequest, FinishReason, RequestOutput, RequestSummary, SchedulerOutput

__all__ = ["Requests"]


class Requests:
    """The live requests. What a row's end needs is done in one place, so that no map keeps a dead one."""

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
        self._spans = spans
        self._detokenizer = detokenizer
        self._eos_token_ids = eos_token_ids
        self._max_model_len = max_model_len
        self._on_finished = on_finished
        self._texts: dict[str, TextState] = {}
        self._timelines: dict[str, Timeline] = {}
        self._computed: dict[str, int] = {}
        self._deadlines: list[tuple[float, int, str]] = []
        self._outputs: list[RequestOutput] = []

    def __len__(self) -> int:
        return len(self.ledger)

    @property
    def has_outputs(self) -> bool:
        """Whether something waits to be taken."""
        return bool(self._outputs)

    def take_outputs(self) -> list[RequestOutput]:
        """The deltas since the last time, in the order in which they came to exist."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def open(self, request: EngineRequest, *, operation: str, generation: int, now_ns: int) -> Row:
        """A row and its companions for a request that was admitted."""
        row = self.ledger.open(request, generation=generation)
        self._texts[row.request_id] = TextState(row.params, self._detokenizer(row.params.skip_special_tokens))
        self._timelines[row.request_id] = self._spans.open(row, operation, now_ns)
        if row.deadline is not None:
            heapq.heappush(self._deadlines, (row.deadline, row.arrival_number, row.request_id))
        return row

    def observe(self, sent: SchedulerOutput, now_ns: int, scheduler: str) -> dict[str, tuple[Row, int]]:
        """Note what a schedule says of each request; returns its rows with the offset of their next token."""
        for request_id in sent.preempted:
            if (row := self.ledger.get(request_id)) is not None:
                row.preemptions += 1
                self._timelines[request_id].event("preempted", now_ns)
        for new in sent.new:
            if (row := self.ledger.get(new.request_id)) is not None:
                row.cached_tokens = min(new.num_computed_tokens, len(row.prompt_token_ids))
        for resumed in sent.resumed:
            if (row := self.ledger.get(resumed.request_id)) is not None:
                row.recomputed_tokens += max(0, self._computed.get(row.request_id, 0) - resumed.num_computed_tokens)
        starts = {new.request_id: new.num_computed_tokens for new in sent.new}
        starts |= {running.request_id: running.num_computed_tokens for running in sent.running}
        starts |= {resumed.request_id: resumed.num_computed_tokens for resumed in sent.resumed}
        rows: dict[str, tuple[Row, int]] = {}
        for request_id, count in sent.num_scheduled_tokens.items():
            known = self.ledger.get(request_id)
            if known is None or request_id not in starts:
                fault = "which has ended or never came" if known is None else "and did not say how it runs"
                raise PolicyFailed(f"{scheduler} scheduled request {request_id!r} in step {sent.step}, {fault}")
            rows[request_id] = (known, len(known.committed))
            self._computed[request_id] = max(self._computed.get(request_id, 0), starts[request_id] + count)
            timeline = self._timelines[request_id]
            timeline.last_step = sent.step
            if timeline.scheduled_ns is None:
                timeline.scheduled_ns, timeline.first_step = now_ns, sent.step
                timeline.event("scheduled", now_ns)
        return rows

    def commit(
        self, row: Row, offset: int, drawn: Sequence[int], now_ns: int
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
        self._outputs.append(
            self.ledger.commit(
                row, offset, taken.token_ids, text=taken.text, finish=taken.finish, stop_reason=taken.stop_reason
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
        text, _ = self._texts[row.request_id].finish()
        self._outputs.append(self.ledger.end(row, finish, text=text, error=error))
        self._close(row, now_ns)

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

    def link_of_ending(self, request_id: str, flight: InFlight) -> Link | None:
        """The link for a step in which the request may end; None when the step has it already, or is not recorded."""
        timeline = self._timelines[request_id]
        return None if flight.context is None or timeline.first_step == flight.step else link_to(timeline)

    def _close(self, row: Row, now_ns: int) -> None:
        self.num_finished += 1
        del self._texts[row.request_id]
        self._computed.pop(row.request_id, None)
        self._on_finished(self._spans.close(row, self._timelines.pop(row.request_id), now_ns))
