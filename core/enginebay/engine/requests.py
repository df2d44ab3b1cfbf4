"""Every live request with what is derived beside its ledger row: text state, timeline, span. Opens, commits, ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from opentelemetry.trace import SpanContext

from enginebay.engine.admission.limits import AdmissionLimits
from enginebay.engine.commit import DetokenizerFactory, Ends, TextState, trim
from enginebay.engine.deadlines import Deadlines
from enginebay.engine.grammars import Grammars
from enginebay.engine.ledger import Ledger, Row
from enginebay.engine.live import Live, Lives
from enginebay.engine.logprobs import fault_of_told, prompt_news
from enginebay.engine.observing import observe
from enginebay.engine.replies import fault_of, fault_of_schedule
from enginebay.engine.spans import RequestSpans, link_to
from enginebay.engine.steps import Batch, InFlight
from enginebay.errors import InvalidRequest, RequestError, in_words, is_interrupt
from enginebay.messages import (
    Committed,
    EngineRequest,
    FinishReason,
    ModelRunnerOutput,
    RequestOutput,
    RequestSummary,
    SchedulerOutput,
)

__all__ = ["Requests"]

_log = logging.getLogger(__name__)


class Requests:
    """The live requests. What a row's end needs is done in one place, so that no map keeps a dead one.

    ``num_prefilled`` counts the prompts' tokens that were sent to be computed for the first time, ``num_proposed`` the
    proposals that were verified, ``num_accepted`` those that were committed, ``num_moved`` the choices that came from
    other groups, ``num_structured`` the live requests with a grammar; ``busy_since``: a request came, the only one.
    """

    def __init__(
        self,
        *,
        spans: RequestSpans,
        detokenizer: DetokenizerFactory,
        eos_token_ids: frozenset[int],
        max_model_len: Callable[[], int],
        on_finished: Callable[[RequestSummary], None],
        grammars: Grammars | None = None,
    ) -> None:
        self.ledger = Ledger()
        self.num_finished = self.num_tokens = self.num_prefilled = 0
        self.num_proposed = self.num_accepted = self.num_moved = 0
        self.num_structured = 0
        self.busy_since = 0.0
        self._spans, self._on_finished = spans, on_finished
        self._detokenizer, self._eos_token_ids, self._max_model_len = detokenizer, eos_token_ids, max_model_len
        self._grammars = grammars or Grammars()
        self._live = Lives()
        self._deadlines = Deadlines(self.ledger)
        self._outputs: list[RequestOutput] = []

    def __len__(self) -> int:
        return len(self.ledger)

    @property
    def progress(self) -> int:
        """Grows whenever a token was committed, a request ended, or a prompt was computed further than ever before."""
        return self.num_tokens + self.num_finished + self.num_prefilled

    @property
    def num_computed(self) -> int:
        """Known tokens of live requests that were sent to be computed: so many are again when the KV cache is lost."""
        return sum(min(one.computed, len(one.row.prompt_token_ids) + len(one.row.committed)) for one in self._live)

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
        ends = Ends.of(
            row.params,
            num_prompt_tokens=len(row.prompt_token_ids),
            eos_token_ids=self._eos_token_ids,
            max_model_len=self._max_model_len(),
        )
        self._begin(Live(row, text, timeline, ends), request)
        return row

    def leave(self, row: Row) -> Live:
        """Give a live request away with all that is derived beside its row: it goes on elsewhere. No step has it."""
        self.ledger.leave(row)
        return self._leave(row)

    def enter(self, lives: Sequence[Live], now_ns: int, group: int) -> None:
        """Go on in this ``group`` with live requests that were given away; what is committed stands. Ids are free."""
        if not len(self.ledger):
            self.busy_since = now_ns / 1e9
        for live in lives:
            live.enter(group)
            self.ledger.enter(live.row)
            self._begin(live, live.row.request())

    def refuse(self, lives: Sequence[Live], now_ns: int, error: str) -> None:
        """End live requests that were given away elsewhere; they are never here, where their ids may be others'."""
        for live in lives:
            apart = Ledger()
            apart.enter(live.row)
            self._outputs.append(apart.end(live.row, FinishReason.ERROR, text=self._rest(live), error=error))
            self._tell(live, now_ns)

    def _begin(self, live: Live, request: EngineRequest) -> None:
        self._live.add(live)
        self._deadlines.add(live.row)
        if request.params.structured is not None:
            self.num_structured += 1
            self._grammars.hold(request)

    def release(self, give: Callable[[EngineRequest], None], now_ns: int) -> None:
        """Give those to the scheduler whose grammars have become ready. One that cannot be used refuses its request."""
        for request, fault in self._grammars.released() if self.num_structured else ():
            try:
                if fault is None:
                    give(request)
            except RequestError as error:
                fault = error
            if fault is not None:
                param = fault.param or "" if isinstance(fault, InvalidRequest) else None
                row = self._live[request.request_id].row
                self.end(row, FinishReason.ERROR, now_ns, error=str(fault), error_param=param)

    def observe(self, sent: SchedulerOutput, now_ns: int, scheduler: str) -> Batch:
        """Note what a schedule says of each request."""
        batch, num_prefilled = observe(self._live, sent, now_ns, scheduler, self._grammars.holds)
        self.num_prefilled += num_prefilled
        return batch

    def settle(self, flight: InFlight, output: ModelRunnerOutput, limits: AdmissionLimits, now_ns: int) -> Committed:
        """Make a step's drawn tokens exist, row by row; returns what the scheduler is told. Nothing in here waits."""
        sampled: Sequence[tuple[int, ...]] = output.sampled_token_ids
        if output.request_ids != tuple(flight.rows):
            drawn_by_id = dict(zip(output.request_ids, sampled, strict=True))
            sampled = [drawn_by_id.get(request_id, ()) for request_id in flight.rows]
        tokens_alone = not (output.faults or output.logprobs or output.prompt_logprobs)
        vocab_size, extend, outputs = limits.vocab_size, self.ledger.extend, self._outputs
        committed, num_plain = Committed(), 0
        tokens = committed.token_ids
        for request_id, (live, offset), drawn in zip(flight.rows, flight.rows.values(), sampled, strict=True):
            if live.row.finish is not None:  # aborted while the step ran
                continue
            if tokens_alone and offset < live.plain_below and len(drawn) == 1 and not live.verifying:
                token_id = drawn[0]
                if 0 <= token_id < vocab_size and token_id not in live.ending:  # all that it can mean is one more
                    outputs.append(extend(live.row, offset, drawn, live.text.detokenizer.push(drawn)))
                    tokens[request_id] = drawn
                    num_plain += 1
                    continue
            self._settle_row(live, offset, drawn, flight, output, limits, now_ns, committed)
        self.num_tokens += num_plain
        return committed

    def void(self, now_ns: int, recovery: SpanContext | None = None) -> list[EngineRequest]:
        """No step in flight happened. Returns ``waiting``; the grammars stand where the ledger does."""
        for live in self._live:
            live.void()
            live.row.recoveries += 1
            live.timeline.event("requeued", now_ns, recovery)
        return self.waiting()

    def waiting(self) -> list[EngineRequest]:
        """The live requests in order of arrival, but for those that no scheduler has had: they wait for grammars."""
        return [row.request() for row in self.ledger if not self._grammars.holds(row.request_id)]

    def _settle_row(
        self,
        live: Live,
        offset: int,
        drawn: tuple[int, ...],
        flight: InFlight,
        output: ModelRunnerOutput,
        limits: AdmissionLimits,
        now_ns: int,
        committed: Committed,
    ) -> None:
        """Settle one row whatever came of it, and note it in ``committed``."""
        row, request_id = live.row, live.row.request_id
        if request_id not in flight.partial:
            live.expected -= 1
            live.verifying = False
        fault = fault_of(request_id, output, drawn, limits) or fault_of_schedule(row, flight)
        if not fault and (row.params.logprobs is not None or row.params.prompt_logprobs is not None):
            start = flight.starts[request_id]
            end = start + flight.sent.num_scheduled_tokens[request_id]
            fault = fault_of_told(row, drawn, (start, end), output, limits)
        if not fault and drawn and row.params.structured is not None:
            fault = self._grammars.fault(request_id, drawn)
        finish: FinishReason | None = None
        if fault:
            finish = FinishReason.ERROR
            self.end(row, finish, now_ns, error=fault)
        elif drawn:
            taken, finish = self._commit(live, offset, drawn, output, now_ns)
            committed.token_ids[request_id] = taken
            if request_id in flight.drafts:
                self.num_proposed += len(flight.drafts[request_id])
                self.num_accepted += len(taken) - 1
        else:
            if request_id not in flight.partial:
                flight.silent.append(request_id)
            if news := prompt_news(row, output):
                self._outputs.append(self.ledger.commit(row, offset, (), prompt_logprobs=news))
        if finish is not None:
            committed.finished[request_id] = finish
            if flight.context is not None and not live.timeline.is_first(flight.step):  # else it has the link already
                flight.links.append(link_to(live.timeline))

    def _commit(
        self, live: Live, offset: int, drawn: Sequence[int], output: ModelRunnerOutput, now_ns: int
    ) -> tuple[tuple[int, ...], FinishReason | None]:
        """Trim what was drawn, and make the rest exist; returns it, and why the row ended, if it did."""
        row = live.row
        taken = trim(drawn, ends=live.ends, min_tokens=row.params.min_tokens, text=live.text, num_output_tokens=offset)
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
        live.expected += len(taken.token_ids)
        if live.timeline.first_token_ns is None:
            live.began(now_ns)
        if row.finish is not None:
            self._close(row, now_ns)
        return taken.token_ids, taken.finish

    def end(
        self, row: Row, finish: FinishReason, now_ns: int, *, error: str | None = None, error_param: str | None = None
    ) -> None:
        """End a row by other means than its tokens; text that was held back goes out with it."""
        text = self._rest(self._live[row.request_id])
        self._outputs.append(self.ledger.end(row, finish, text=text, error=error, error_param=error_param))
        self._close(row, now_ns)

    def end_all(self, finish: FinishReason, now_ns: int, *, error: str | None = None) -> None:
        """End every row, when the engine ends: one whose end fails is reported, and keeps no other from its own."""
        for row in self.ledger:
            try:
                self.end(row, finish, now_ns, error=error)
            except BaseException as failed:  # what native code throws past Exception, too
                if is_interrupt(failed):
                    raise
                _log.warning("ending request %r failed: %s", row.request_id, in_words(failed))

    def expired(self, now: float) -> list[Row]:
        """The live rows whose deadline has passed."""
        return self._deadlines.passed(now)

    @staticmethod
    def _rest(live: Live) -> str:
        """Its text that was held back."""
        return live.text.finish(may_end=len(live.row.committed) >= live.row.params.min_tokens)[0]

    def _close(self, row: Row, now_ns: int) -> None:
        self._tell(self._leave(row), now_ns)

    def _tell(self, live: Live, now_ns: int) -> None:
        self.num_finished += 1
        live.timeline.was_in(live.last_step)
        self._on_finished(self._spans.close(live.row, live.timeline, now_ns))

    def _leave(self, row: Row) -> Live:
        if row.params.structured is not None:
            self.num_structured -= 1
            self._grammars.close(row.request_id)
        self._deadlines.prune()
        return self._live.pop(row.request_id)
