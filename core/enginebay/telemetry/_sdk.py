"""The SDK's side of a set-up: provider, processors, exporters. Imported only when something is configured."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from enginebay.errors import ConfigError
from enginebay.telemetry._file import FileExporter
from enginebay.tracing import ENGINE_RECOVER, ENGINE_START, SCOPE

DELAY_MS = 500  # a killed process loses what it has not sent, so batches are short
QUEUE = 8192
MAX_LINKS = 1024  # a step links to every request that joined or ended in it; the SDK's own limit is 128
MAX_VALUE = 4096
_RARE = frozenset({ENGINE_START, ENGINE_RECOVER})

_PROTOCOLS = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}


class SystemIds(IdGenerator):
    """Ids from the system's randomness: the SDK's come from the global ``random``, which models seed alike."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def generate_span_id(self) -> int:
        """64 bits, not zero."""
        return self._random.randrange(1, 1 << 64)

    def generate_trace_id(self) -> int:
        """128 bits, not zero."""
        return self._random.randrange(1, 1 << 128)


class Rare(Sampler):
    """Another sampler, but for the traces of starts and recoveries: these are few, and always wanted afterwards."""

    def __init__(self, other: Sampler) -> None:
        self._other = other

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Always, for a root of those names; who has a parent is decided on by that."""
        rare = name in _RARE and not trace.get_current_span(parent_context).get_span_context().is_valid
        chosen = ALWAYS_ON if rare else self._other
        return chosen.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        """In words."""
        return f"starts and recoveries, else {self._other.get_description()}"


class OnlyOurs(SpanProcessor):
    """Passes on spans of our own scope, to share a provider that belongs to the application."""

    def __init__(self, behind: SpanProcessor) -> None:
        self._behind = behind

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing happens at a span's start."""

    def on_end(self, span: ReadableSpan) -> None:
        """Pass the span on when it is ours."""
        if span.instrumentation_scope is not None and span.instrumentation_scope.name == SCOPE:
            self._behind.on_end(span)

    def shutdown(self) -> None:
        """Shut down what is behind."""
        self._behind.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Flush what is behind."""
        return self._behind.force_flush(timeout_millis)


def processors(file: Path | None, endpoint: str | None, *, from_environment: bool) -> list[SpanProcessor]:
    """One batching processor per destination; raises ``ConfigError`` before any is left open."""
    exporters: list[SpanExporter] = []
    if endpoint is not None or from_environment:
        exporters.append(_otlp_exporter(endpoint))
    if file is not None:
        exporters.append(FileExporter(file))
    return [
        BatchSpanProcessor(exporter, max_queue_size=QUEUE, schedule_delay_millis=DELAY_MS, max_export_batch_size=512)
        for exporter in exporters
    ]


def provider(role: str, processors: Sequence[SpanProcessor]) -> TracerProvider:
    """A private provider. The sampler is the SDK's: parent-based, or as ``OTEL_TRACES_SAMPLER`` says; see ``Rare``."""
    resource = Resource.create(
        {
            "service.name": os.environ.get("OTEL_SERVICE_NAME") or "enginebay",
            "service.version": version("enginebay"),
            "enginebay.role": role,
            "process.pid": os.getpid(),
            "host.name": socket.gethostname(),
        }
    )
    limits = SpanLimits(max_links=MAX_LINKS, max_attribute_length=MAX_VALUE)
    made = TracerProvider(resource=resource, id_generator=SystemIds(), span_limits=limits, shutdown_on_exit=False)
    made.sampler = Rare(made.sampler)
    for processor in processors:
        made.add_span_processor(processor)
    return made


def share(application: trace.TracerProvider, processors: Sequence[SpanProcessor]) -> None:
    """Add our processors to the application's own provider, for our spans alone; ``ConfigError`` if it takes none."""
    if not isinstance(application, TracerProvider):
        for processor in processors:
            processor.shutdown()
        raise ConfigError(
            f"[telemetry]: this process has a tracer provider of its own ({type(application).__qualname__}), "
            "which takes no span processors. Leave [telemetry] unset, or set that provider up after the engine."
        )
    for processor in processors:
        application.add_span_processor(OnlyOurs(processor))


def _otlp_exporter(endpoint: str | None) -> SpanExporter:
    protocol = (
        os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    if protocol not in _PROTOCOLS:
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL = {protocol!r}: unknown protocol. Known: {', '.join(sorted(_PROTOCOLS))}."
        )
    if endpoint is not None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"[telemetry] endpoint = {endpoint!r}: not an http:// or https:// address, "
                "such as http://127.0.0.1:4318."
            )
        if protocol == "http/protobuf" and parts.path in ("", "/"):
            endpoint = endpoint.rstrip("/") + "/v1/traces"  # as the exporter does for an address of the environment
    try:
        module = import_module(_PROTOCOLS[protocol])
    except ImportError as error:
        raise ConfigError(
            f"Sending traces to an OTLP endpoint needs its exporter ({protocol}): pip install 'enginebay[otel]'. "
            "Without it, [telemetry] file writes them to a file."
        ) from error
    exporter: SpanExporter = module.OTLPSpanExporter(endpoint=endpoint)
    return exporter
