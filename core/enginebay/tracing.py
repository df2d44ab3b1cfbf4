"""Span and attribute names, carriers, and the span helper. Uses the OpenTelemetry API only; never the SDK.

Without a provider (see ``enginebay.telemetry``) every call here is a no-op that costs a fraction of a microsecond.
Context travels as a ``traceparent`` string inside messages and spawn arguments, never in ``os.environ``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

SCOPE: Final = "enginebay"

ENGINE_START: Final = "engine.start"
CONFIG_RESOLVE: Final = "config.resolve"
PLUGIN_DISCOVERY: Final = "plugin.discovery"
EXECUTOR_LAUNCH: Final = "executor.launch"
WORKER_SPAWN: Final = "worker.spawn"
WORKER_INIT: Final = "worker.init"
WORKER_INIT_DEVICE: Final = "worker.init_device"
WORKER_INIT_DISTRIBUTED: Final = "worker.init_distributed"
WORKER_MEMORY_SNAPSHOT: Final = "worker.memory_snapshot"
WORKER_LOAD_MODEL: Final = "worker.load_model"
WORKER_PROFILE: Final = "worker.profile"
WORKER_ALLOCATE_KV_CACHE: Final = "worker.allocate_kv_cache"
WORKER_WARM_UP: Final = "worker.warm_up"
ENGINE_STEP: Final = "engine.step"
STEP_SCHEDULE: Final = "schedule"
STEP_EXECUTE_MODEL: Final = "execute_model"
STEP_SAMPLE: Final = "sample"
STEP_UPDATE: Final = "update"
WORKER_EXECUTE_MODEL: Final = "worker.execute_model"
REQUEST_QUEUE: Final = "queue"
REQUEST_PREFILL: Final = "prefill"
REQUEST_DECODE: Final = "decode"
ENGINE_RECOVER: Final = "engine.recover"
WORKER_RECLAIM: Final = "worker.reclaim"
WORKER_BACK_OFF: Final = "worker.back_off"
WORKER_RESPAWN: Final = "worker.respawn"
REQUEST_REQUEUE: Final = "request.requeue"

RANK: Final = "enginebay.rank"
LOCAL_RANK: Final = "enginebay.local_rank"
GENERATION: Final = "enginebay.generation"
INCARNATION: Final = "enginebay.incarnation"
PID: Final = "process.pid"
DEVICE: Final = "enginebay.device"
FREE_BYTES: Final = "enginebay.memory.free_bytes"
KV_BLOCKS: Final = "enginebay.kv.blocks"
REQUEST_ID: Final = "enginebay.request.id"
STEP_INDEX: Final = "enginebay.step.index"
FIRST_STEP: Final = "enginebay.request.first_step"
LAST_STEP: Final = "enginebay.request.last_step"
FIRST_STEP_TRACE: Final = "enginebay.request.first_step.trace_id"
LAST_STEP_TRACE: Final = "enginebay.request.last_step.trace_id"
FIRST_STEP_GROUP: Final = "enginebay.request.first_step.group"
LAST_STEP_GROUP: Final = "enginebay.request.last_step.group"
BATCH_SIZE: Final = "enginebay.step.batch_size"
TOKENS_SCHEDULED: Final = "enginebay.step.tokens_scheduled"
KV_USAGE: Final = "enginebay.kv.usage"
QUEUE_DEPTH: Final = "enginebay.queue.depth"
PREEMPTIONS: Final = "enginebay.request.preemptions"
RECOVERIES: Final = "enginebay.request.recoveries"
REQUEST_ERROR: Final = "enginebay.request.error"
ERROR_TYPE: Final = "error.type"
REASON: Final = "enginebay.reason"

CAUSE: Final = "enginebay.recovery.cause"
LOST_IN: Final = "enginebay.recovery.phase"
GENERATION_AFTER: Final = "enginebay.recovery.generation_after"
STEPS_VOID: Final = "enginebay.recovery.steps_void"
REQUEUED: Final = "enginebay.recovery.requests_requeued"
MOVED: Final = "enginebay.recovery.requests_moved"
TO_RECOMPUTE: Final = "enginebay.recovery.tokens_to_recompute"
RECOVERY_TRACE: Final = "enginebay.recovery.trace_id"
EXIT_CODE: Final = "process.exit.code"
EXIT: Final = "enginebay.exit"
EXIT_SIGNAL: Final = "enginebay.exit.signal"
GROUP: Final = "enginebay.group"
RESTART: Final = "enginebay.restart"

EXECUTOR: Final = "enginebay.executor"
RUNNER: Final = "enginebay.runner"
SCHEDULER: Final = "enginebay.scheduler"
MODEL: Final = "enginebay.model"
OVERLAP: Final = "enginebay.overlap"
ATTENTION: Final = "enginebay.attention"
GRAPH: Final = "enginebay.graph"
WORLD_SIZE: Final = "enginebay.world_size"
FINISH_REASON: Final = "enginebay.request.finish_reason"
TOKENS_COMMITTED: Final = "enginebay.step.tokens_committed"
TOKENS_PROPOSED: Final = "enginebay.step.tokens_proposed"
TOKENS_ACCEPTED: Final = "enginebay.step.tokens_accepted"

# Request spans alone carry gen_ai.*: viewers show any span with a request model as a call of a language model.
GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER: Final = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_K: Final = "gen_ai.request.top_k"
GEN_AI_REQUEST_TOP_P: Final = "gen_ai.request.top_p"
GEN_AI_REQUEST_SEED: Final = "gen_ai.request.seed"
GEN_AI_REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
GEN_AI_REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
GEN_AI_REQUEST_CHOICE_COUNT: Final = "gen_ai.request.choice.count"
GEN_AI_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"

Attributes = Mapping[str, AttributeValue]


def tracer() -> trace.Tracer:
    """The tracer of this engine; a no-op one until a provider is set up."""
    return trace.get_tracer(SCOPE)


def parse_traceparent(value: str) -> Context | None:
    """The context that a W3C ``traceparent`` names, or None when the string is empty or not exactly one."""
    parts = value.split("-")
    if len(parts) != 4 or [len(p) for p in parts] != [2, 32, 16, 2] or parts[0] != "00":
        return None
    if not all(c in "0123456789abcdef" for p in parts for c in p):
        return None
    trace_id, span_id = int(parts[1], 16), int(parts[2], 16)
    if not trace_id or not span_id:
        return None
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(int(parts[3], 16)))
    return trace.set_span_in_context(trace.NonRecordingSpan(context))


def traceparent(span: Span | None = None) -> str:
    """The ``traceparent`` of a span (None: the current one); empty when it is not recorded anywhere."""
    context = (span or trace.get_current_span()).get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@contextmanager
def span(
    name: str,
    attributes: Attributes | None = None,
    *,
    parent: str = "",
    links: Sequence[Link] | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    start_ns: int | None = None,
    root: bool = False,
) -> Iterator[Span]:
    """A span around a block, child of ``parent`` (a traceparent) or of the current span; ``root``: a trace of its own.

    An exception that leaves the block is recorded, with ``error.type``, and sets the status; it is not swallowed.
    ``start_ns`` is wall time in nanoseconds.
    """
    current = tracer().start_span(
        name,
        context=Context() if root else parse_traceparent(parent) if parent else None,
        kind=kind,
        attributes=attributes,
        links=links,
        start_time=start_ns,
    )
    if not current.get_span_context().is_valid:  # no provider: to make it the current one costs more than all the rest
        yield current
        return
    with trace.use_span(current, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield current
        except BaseException as error:
            fail(current, error)
            raise


def past(name: str, start_ns: int, end_ns: int) -> None:
    """A child of the current span for what is over already; wall time in nanoseconds."""
    tracer().start_span(name, start_time=start_ns).end(end_ns)


def fail(span: Span, error: BaseException, error_type: str = "") -> None:
    """Mark a span as failed by ``error``; ``error_type``: a word for its kind, else its class is that."""
    if span.is_recording():
        span.record_exception(error)
        span.set_attribute(ERROR_TYPE, error_type or type(error).__name__)
        span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"[:512]))


class StepGate:
    """Decides which steps are recorded, before any OpenTelemetry call is made: one in ``every``, and the slow ones.

    ``record(step)`` is asked before a step. ``is_slow`` is told each step's duration afterwards and answers whether it
    took ``slow_factor`` times the typical step: such a step, and any failed one, is built from the loop's marks.
    """

    _LEARNING = 32  # steps whose durations are only learned from

    def __init__(self, every: int, slow_factor: float = 10.0) -> None:
        self._every = every
        self._slow_factor = slow_factor
        self._typical = 0.0
        self._seen = 0

    def record(self, step: int) -> bool:
        """Whether this step is one of the one in ``every``; the first one (0) is."""
        return step % self._every == 0

    def is_slow(self, duration_ns: int) -> bool:
        """Whether a step that took so long stands out; learns from it in either case."""
        self._seen += 1
        slow = self._seen > self._LEARNING and duration_ns > self._slow_factor * self._typical
        # a moving average of the last few dozen; one outlier moves it no more than the limit does
        learned = min(duration_ns, self._slow_factor * self._typical) if slow else duration_ns
        self._typical += (learned - self._typical) / min(self._seen, self._LEARNING)
        return slow
