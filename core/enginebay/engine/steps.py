"""A step on its way through the engine: its marks, and its spans if it is one of those that are recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode

from enginebay import tracing
from enginebay.engine.live import Live
from enginebay.engine.recovery import error_type
from enginebay.engine.spans import WallTime, link_to
from enginebay.interfaces import PendingCall
from enginebay.messages import (
    NewRequest,
    ResumedRequest,
    RunningRequest,
    SchedulerOutput,
    SchedulerStats,
    StepReport,
)

__all__ = ["Batch", "InFlight", "StepRecorder", "StepVoid", "drafts_of"]


class StepVoid(Exception):
    """Why a step that was sent counts as one that never happened: written into its span, and never raised."""


class Batch(NamedTuple):
    """What the ledger says of the requests of a step.

    ``rows`` has each of them with the offset at which its next token belongs; ``partial`` are those that do not reach
    the end of what is known of them, and so draw nothing, as all others must; ``drafts`` has the proposals of those
    that have any.
    """

    rows: dict[str, tuple[Live, int]]
    partial: set[str]
    drafts: dict[str, tuple[int, ...]]


def drafts_of(sent: SchedulerOutput) -> dict[str, tuple[int, ...]]:
    """The proposals of each request that has any in this step."""
    return {running.request_id: running.draft_token_ids for running in sent.running if running.draft_token_ids}


class InFlight(Struct, kw_only=True):
    """One step that was sent to the workers and has not been committed.

    ``scheduled`` is the scheduler's own object, ``sent`` the same with our step, generation and constrained requests;
    ``rows``, ``partial`` and ``drafts`` are the fields of its ``Batch``. ``call`` is None until it was sent, and so is
    ``sampling``, the second call of a step that draws under grammars. ``silent`` are the live requests that had to draw
    and got no token, once it is committed. Marks are monotonic nanoseconds.
    """

    step: int
    generation: int
    scheduled: SchedulerOutput
    sent: SchedulerOutput
    rows: dict[str, tuple[Live, int]]
    partial: set[str]
    drafts: dict[str, tuple[int, ...]]
    start_ns: int
    scheduled_ns: int
    call: PendingCall | None = None
    sampling: PendingCall | None = None
    executed_ns: int = 0
    sampled_ns: int = 0
    silent: list[str] = []
    links: list[Link] = []
    trace: StepTrace | None = None
    _starts: dict[str, int] = {}

    @property
    def starts(self) -> dict[str, int]:
        """How many tokens of each request are computed before the step; put together when somebody asks, as few do."""
        if not self._starts:
            sent = self.sent
            told: tuple[NewRequest | RunningRequest | ResumedRequest, ...] = (*sent.running, *sent.new, *sent.resumed)
            self._starts = {one.request_id: one.num_computed_tokens for one in told}
        return self._starts

    @property
    def owes_masks(self) -> bool:
        """Whether the workers keep its scores until they are told what may be drawn."""
        return bool(self.sent.constrained) and self.sampling is None

    def knows_masks(self) -> bool:
        """Whether all that its constrained requests drew in earlier steps is committed: only then are masks known."""
        rows = (self.rows[request_id] for request_id in self.sent.constrained)
        return all(live.row.finish is not None or len(live.row.committed) == offset for live, offset in rows)

    def link_requests(self) -> None:
        """Tie a recorded step and its requests in both directions: those that join here, and each one's last."""
        if (context := self.context) is None:
            return
        for live, _ in self.rows.values():
            timeline = live.timeline
            timeline.last_step_context = context
            if timeline.is_first(self.step):
                timeline.first_step_context = context
                self.links.append(link_to(timeline))

    @property
    def context(self) -> SpanContext | None:
        """The step's span context, when it is recorded."""
        return self.trace.span.get_span_context() if self.trace is not None and self.trace.span.is_recording() else None


@dataclass(kw_only=True, slots=True)
class StepTrace:
    """The open spans of a recorded step."""

    span: Span
    execute: Span


class StepRecorder:
    """Asks the gate, and builds a step's spans: live for a chosen step, afterwards for a slow or failed one."""

    def __init__(self, *, every: int, wall: WallTime, group: int = 0) -> None:
        """``group``: whose steps these are, which it numbers by itself."""
        self._gate = tracing.StepGate(every)
        self._wall, self._group = wall, group
        self._tracer = tracing.tracer()

    def begin(self, step: int, start_ns: int, scheduled_ns: int) -> StepTrace | None:
        """The open spans of the step if it is recorded; asked once it is known that there is something to run."""
        if not self._gate.record(step):
            return None
        span = self._open(step, start_ns, scheduled_ns)
        if not span.is_recording():  # then no child of it would be
            return None
        execute = self._child(span, tracing.STEP_EXECUTE_MODEL, scheduled_ns)
        return StepTrace(span=span, execute=execute)

    def finish(self, flight: InFlight, report: StepReport) -> None:
        """End the spans of a step that was committed; build them now if it stands out and was not chosen."""
        slow = self._gate.is_slow(report.end_ns - report.start_ns)
        if flight.trace is None and not slow:
            return
        span = self._spans(flight, report.end_ns)
        if span.is_recording():
            span.set_attributes(_attributes(flight, report.stats))
            span.set_attribute(tracing.TOKENS_COMMITTED, report.num_committed_tokens)
            if flight.drafts:
                span.set_attribute(tracing.TOKENS_PROPOSED, report.num_proposed_tokens)
                span.set_attribute(tracing.TOKENS_ACCEPTED, report.num_accepted_tokens)
        span.end(self._wall(report.end_ns))

    def fail(self, flight: InFlight, error: BaseException, now_ns: int) -> SpanContext | None:
        """Record a step that failed, chosen or not; returns its span's context, if it has one."""
        span = self._spans(flight, now_ns)
        if span.is_recording():
            span.set_attributes(_attributes(flight, SchedulerStats()))
            tracing.fail(span, error, error_type(error))
        span.end(self._wall(now_ns))
        context = span.get_span_context()
        return context if context.trace_flags.sampled else None

    def leave(self, flight: InFlight, now_ns: int) -> None:
        """End the spans of a step that was sent and is not waited for: workers' spans stand below them."""
        if flight.trace is not None:
            flight.trace.execute.end(self._wall(now_ns))
            flight.trace.span.end(self._wall(now_ns))

    def _spans(self, flight: InFlight, end_ns: int) -> Span:
        executed, sampled = flight.executed_ns or end_ns, flight.sampled_ns or flight.executed_ns or end_ns
        if flight.trace is None:
            span = self._open(flight.step, flight.start_ns, flight.scheduled_ns)
            if not span.is_recording():
                return span
            execute = self._child(span, tracing.STEP_EXECUTE_MODEL, flight.scheduled_ns)
        else:
            span, execute = flight.trace.span, flight.trace.execute
        for link in flight.links:
            span.add_link(link.context)
        if not flight.executed_ns:
            execute.set_status(Status(StatusCode.ERROR))
        execute.end(self._wall(executed))
        if flight.executed_ns:
            self._child(span, tracing.STEP_SAMPLE, executed).end(self._wall(sampled))
        if flight.sampled_ns:
            self._child(span, tracing.STEP_UPDATE, sampled).end(self._wall(end_ns))
        return span

    def _open(self, step: int, start_ns: int, scheduled_ns: int) -> Span:
        span = self._tracer.start_span(
            tracing.ENGINE_STEP,
            context=Context(),
            attributes={tracing.STEP_INDEX: step, tracing.GROUP: self._group},
            start_time=self._wall(start_ns),
        )
        if span.is_recording():
            self._child(span, tracing.STEP_SCHEDULE, start_ns).end(self._wall(scheduled_ns))
        return span

    def _child(self, parent: Span, name: str, start_ns: int) -> Span:
        return self._tracer.start_span(
            name, context=trace.set_span_in_context(parent, Context()), start_time=self._wall(start_ns)
        )


def _attributes(flight: InFlight, stats: SchedulerStats) -> dict[str, int | float]:
    return {
        tracing.GENERATION: flight.generation,
        tracing.BATCH_SIZE: len(flight.sent.num_scheduled_tokens),
        tracing.TOKENS_SCHEDULED: flight.sent.total_num_scheduled_tokens,
        tracing.KV_USAGE: stats.kv_usage,
        tracing.QUEUE_DEPTH: stats.num_waiting,
    }
