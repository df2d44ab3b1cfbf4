"""Spans of requests: one per request, its children built at the end from timestamps; nothing is done per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from enginebay import tracing
from enginebay.engine.ledger import Row
from enginebay.messages import EngineRequest, FinishReason, RequestSummary
from enginebay.runtime import Clock

__all__ = ["CHAT", "TEXT_COMPLETION", "RequestSpans", "Timeline", "WallTime", "link_to"]

CHAT: Final = "chat"
TEXT_COMPLETION: Final = "text_completion"

_MAX_EVENTS = 64
_MAX_ATTRIBUTE_CHARS = 4096


class WallTime:
    """Turns monotonic marks into wall time by one offset, taken once: spans of one engine never jump."""

    def __init__(self, clock: Clock) -> None:
        self._offset = clock.wall_ns() - clock.now_ns()

    def __call__(self, monotonic_ns: int) -> int:
        """Nanoseconds since 1970 of a mark of ``Clock.now_ns``."""
        return monotonic_ns + self._offset


@dataclass(kw_only=True, slots=True)
class Timeline:
    """When what happened to one request; nanoseconds of the monotonic clock, None where it never came so far.

    ``group`` is where it is now. Each group numbers its steps by itself, so a step is named with the group that had it.
    """

    span: Span
    arrival_ns: int
    group: int = 0
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    first_group: int | None = None
    last_group: int | None = None
    first_step_context: SpanContext | None = None
    last_step_context: SpanContext | None = None
    events: tuple[tuple[str, int, SpanContext | None, int | None], ...] = ()

    def scheduled(self, step: int, now_ns: int) -> None:
        """Note the first step that the request is part of; of later calls nothing is noted."""
        if self.scheduled_ns is None:
            self.scheduled_ns, self.first_step, self.first_group = now_ns, step, self.group
            self.event("scheduled", now_ns)

    def is_first(self, step: int) -> bool:
        """Whether this step of the group where it is now is the first one that it was part of."""
        return self.first_step == step and self.first_group == self.group

    def was_in(self, step: int | None) -> None:
        """Note the last step that it was part of where it is now; None: what it was part of before stands."""
        if step is not None:
            self.last_step, self.last_group = step, self.group

    def event(self, name: str, now_ns: int, recovery: SpanContext | None = None, group: int | None = None) -> None:
        """Note an event, of a ``recovery`` and about a ``group`` if one is named; past a bound they are counted
        elsewhere, and not listed."""
        if len(self.events) < _MAX_EVENTS:
            self.events += ((name, now_ns, recovery, group),)


class RequestSpans:
    """Opens a request's span when it arrives, so that steps can link to it, and fills it in when it ends."""

    def __init__(self, *, model: str, wall: WallTime, group: int = 0) -> None:
        """``group``: whose requests these are when they arrive."""
        self._model, self._group = model, group
        self._wall = wall
        self._tracer = tracing.tracer()  # asking for it costs more than a span that is not recorded

    def open(self, request: EngineRequest, operation: str, now_ns: int) -> Timeline:
        """The timeline of a request that was admitted; its span's parent is the caller's traceparent."""
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=tracing.parse_traceparent(request.traceparent) or Context(),
            kind=SpanKind.SERVER,
            start_time=self._wall(now_ns),
        )
        if span.is_recording():
            span.set_attributes(self._asked(request, operation))
        return Timeline(span=span, arrival_ns=now_ns, group=self._group)

    def close(self, row: Row, timeline: Timeline, now_ns: int) -> RequestSummary:
        """End the request's span, also when it was aborted or failed; returns what observers are told."""
        assert row.finish is not None, "a request's span ends after the request"
        if timeline.span.is_recording():
            self._fill(row, timeline, now_ns)
            timeline.span.end(self._wall(now_ns))
        return RequestSummary(
            request_id=row.request_id,
            finish_reason=row.finish,
            usage=row.usage(),
            arrival=row.arrival,
            scheduled=_seconds(timeline.scheduled_ns),
            first_token=_seconds(timeline.first_token_ns),
            finished=now_ns / 1e9,
            first_step=timeline.first_step,
            last_step=timeline.last_step,
            first_step_group=timeline.first_group,
            last_step_group=timeline.last_group,
            error=row.error,
        )

    def _asked(self, request: EngineRequest, operation: str) -> dict[str, AttributeValue]:
        params = request.params
        asked: dict[str, AttributeValue] = {
            tracing.GEN_AI_OPERATION: operation,
            tracing.GEN_AI_PROVIDER: tracing.SCOPE,
            tracing.GEN_AI_REQUEST_MODEL: self._model,
            tracing.GEN_AI_REQUEST_MAX_TOKENS: params.max_tokens,
            tracing.GEN_AI_REQUEST_TEMPERATURE: float(params.temperature),
            tracing.REQUEST_ID: request.request_id,
        }
        if params.top_k:
            asked[tracing.GEN_AI_REQUEST_TOP_K] = params.top_k
        if params.top_p < 1:
            asked[tracing.GEN_AI_REQUEST_TOP_P] = float(params.top_p)
        if params.seed is not None and params.seed < 2**63:  # OTLP integers are signed
            asked[tracing.GEN_AI_REQUEST_SEED] = params.seed
        if params.presence_penalty:
            asked[tracing.GEN_AI_REQUEST_PRESENCE_PENALTY] = params.presence_penalty
        if params.frequency_penalty:
            asked[tracing.GEN_AI_REQUEST_FREQUENCY_PENALTY] = params.frequency_penalty
        if params.n > 1:
            asked[tracing.GEN_AI_REQUEST_CHOICE_COUNT] = params.n
        return asked

    def _fill(self, row: Row, timeline: Timeline, now_ns: int) -> None:
        span, finish = timeline.span, row.finish or FinishReason.ERROR
        for name, at, recovery, group in timeline.events:
            about: dict[str, AttributeValue] = {} if group is None else {tracing.GROUP: group}
            if recovery is not None:
                about[tracing.RECOVERY_TRACE] = f"{recovery.trace_id:032x}"
                span.add_link(recovery)
            span.add_event(name, about, timestamp=self._wall(at))
        span.add_event("finished", {tracing.FINISH_REASON: finish.value}, timestamp=self._wall(now_ns))
        span.set_attributes(_outcome(row, timeline, self._model))
        if timeline.first_step_context is not None:
            span.add_link(timeline.first_step_context)
        if timeline.last_step_context is not None and timeline.last_step_context != timeline.first_step_context:
            span.add_link(timeline.last_step_context)
        if finish is FinishReason.ERROR:
            span.set_attribute(tracing.ERROR_TYPE, "request_failed")
            span.set_status(Status(StatusCode.ERROR, (row.error or "failed")[:512]))
        elif finish is FinishReason.ABORT:
            span.set_attribute(tracing.ERROR_TYPE, "aborted")
            span.set_status(Status(StatusCode.ERROR, "aborted by the client"))
        else:
            span.set_status(Status(StatusCode.OK))
        scheduled, first = timeline.scheduled_ns, timeline.first_token_ns
        self._child(span, tracing.REQUEST_QUEUE, timeline.arrival_ns, scheduled or now_ns)
        if scheduled is not None:
            self._child(span, tracing.REQUEST_PREFILL, scheduled, first or now_ns)
        if first is not None:
            self._child(span, tracing.REQUEST_DECODE, first, now_ns)

    def _child(self, parent: Span, name: str, start_ns: int, end_ns: int) -> None:
        child = self._tracer.start_span(
            name, context=trace.set_span_in_context(parent), start_time=self._wall(start_ns)
        )
        child.end(self._wall(end_ns))


def _outcome(row: Row, timeline: Timeline, model: str) -> dict[str, AttributeValue]:
    assert row.finish is not None
    usage = row.usage()
    outcome: dict[str, AttributeValue] = {
        tracing.GEN_AI_RESPONSE_MODEL: model,
        tracing.GEN_AI_RESPONSE_ID: row.request_id,
        tracing.GEN_AI_FINISH_REASONS: [row.finish.value],
        tracing.GEN_AI_INPUT_TOKENS: usage.prompt_tokens,
        tracing.GEN_AI_OUTPUT_TOKENS: usage.completion_tokens,
        tracing.GEN_AI_CACHED_TOKENS: usage.cached_tokens,
        tracing.FINISH_REASON: row.finish.value,
        tracing.PREEMPTIONS: row.preemptions,
        tracing.RECOVERIES: row.recoveries,
    }
    for name, step, group_name, group, trace_name, context in (
        (
            *(tracing.FIRST_STEP, timeline.first_step, tracing.FIRST_STEP_GROUP, timeline.first_group),
            *(tracing.FIRST_STEP_TRACE, timeline.first_step_context),
        ),
        (
            *(tracing.LAST_STEP, timeline.last_step, tracing.LAST_STEP_GROUP, timeline.last_group),
            *(tracing.LAST_STEP_TRACE, timeline.last_step_context),
        ),
    ):
        if step is not None and group is not None:
            outcome[name], outcome[group_name] = step, group
        if context is not None:
            outcome[trace_name] = f"{context.trace_id:032x}"
    if row.error:
        outcome[tracing.REQUEST_ERROR] = row.error[:_MAX_ATTRIBUTE_CHARS]
    return outcome


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def link_to(timeline: Timeline) -> Link:
    """A link to a request's span, for the step that it joins or ends in."""
    return Link(timeline.span.get_span_context())
