"""Setting up and ending a process's tracing: nothing when nothing is asked, bounded, twice in one process."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, NoOpTracerProvider, SpanContext

from enginebay import tracing
from enginebay.config import TelemetryConfig
from enginebay.errors import ConfigError
from enginebay.telemetry import Telemetry, read_spans, setup
from enginebay.telemetry import _provider as provider_module
from enginebay.telemetry._sdk import MAX_LINKS, OnlyOurs, SystemIds, provider


def names(path: Path) -> list[str]:
    return [span.name for span in read_spans(path)]


@pytest.mark.parametrize(("sampler", "others"), [("always_off", 0), ("parentbased_always_off", 0), ("always_on", 1)])
def test_starts_and_recoveries_are_recorded_whatever_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str, others: int
) -> None:  # R12
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    path = tmp_path / "trace.jsonl"
    telemetry = setup(TelemetryConfig(file=path), role="engine")
    for name in ("engine.start", "engine.recover", "text_completion m"):
        with tracing.span(name), tracing.span("below"):
            pass
    with tracing.span("engine.recover", parent=f"00-{'a' * 32}-{'b' * 16}-00"):  # who has a parent follows it
        pass
    telemetry.shutdown()
    assert names(path).count("text_completion m") == others
    recoveries = 2 if sampler == "always_on" else 1
    assert (names(path).count("engine.start"), names(path).count("engine.recover")) == (1, recoveries)


def test_what_is_below_a_start_or_a_recovery_is_recorded_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R12
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.0")
    path = tmp_path / "trace.jsonl"
    telemetry = setup(TelemetryConfig(file=path), role="engine")
    with tracing.span("engine.recover", root=True), tracing.span("worker.respawn") as span:
        parent = tracing.traceparent(span)
    with tracing.span("worker.init", parent=parent):  # as in another process
        pass
    telemetry.shutdown()
    assert sorted(names(path)) == ["engine.recover", "worker.init", "worker.respawn"]


def test_nothing_configured_is_nothing() -> None:
    before = threading.active_count()
    telemetry = setup(TelemetryConfig(), role="engine")
    assert not telemetry.is_exporting
    assert threading.active_count() == before
    with tracing.span("unseen") as span:
        assert not span.is_recording()
    assert telemetry.flush()
    telemetry.shutdown()
    telemetry.shutdown()


def test_spans_reach_the_file_with_their_process(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    telemetry = setup(TelemetryConfig(file=path), role="engine")
    assert telemetry.is_exporting
    with tracing.span("engine.start", {"enginebay.rank": 0}), tracing.span("config.resolve"):
        pass
    telemetry.shutdown()
    assert not telemetry.is_exporting

    parent, child = read_spans(path)
    assert (parent.name, child.name) == ("engine.start", "config.resolve")
    assert child.parent_id == parent.span_id
    assert child.trace_id == parent.trace_id
    assert parent.attributes == {"enginebay.rank": 0}
    resource = parent.resource
    assert resource["service.name"] == "enginebay"
    assert resource["service.version"] == "0.1.0"
    assert resource["enginebay.role"] == "engine"
    assert resource["process.pid"] == os.getpid()
    assert resource["host.name"]


def test_an_engine_can_be_opened_twice_in_a_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(2):
        telemetry = setup(TelemetryConfig(file=tmp_path / f"{number}.jsonl"), role="engine")
        with tracing.span(f"start {number}"):
            pass
        telemetry.shutdown()
        with tracing.span("after the end"):
            pass
    assert names(tmp_path / "0.jsonl") == ["start 0"]
    assert names(tmp_path / "1.jsonl") == ["start 1"]
    assert caplog.records == []


def test_the_set_up_before_is_in_force_again_after_the_last_one_ends(tmp_path: Path) -> None:
    first = setup(TelemetryConfig(file=tmp_path / "first.jsonl"), role="engine")
    second = setup(TelemetryConfig(file=tmp_path / "second.jsonl"), role="engine")
    with tracing.span("while both are open"):
        pass
    second.shutdown()
    with tracing.span("while the first is open"):
        pass
    first.shutdown()
    assert names(tmp_path / "first.jsonl") == ["while the first is open"]
    assert names(tmp_path / "second.jsonl") == ["while both are open"]


def test_flush_writes_what_ended_so_far(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    telemetry = setup(TelemetryConfig(file=path), role="worker")
    with tracing.span("worker.init"):
        pass
    assert telemetry.flush()
    assert names(path) == ["worker.init"]
    telemetry.shutdown()


def test_a_process_that_forgets_to_shut_down_still_writes(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    code = f"""
from pathlib import Path
from enginebay import tracing
from enginebay.config import TelemetryConfig
from enginebay.telemetry import setup
telemetry = setup(TelemetryConfig(file=Path({str(path)!r})), role="engine")
with tracing.span("last words"): pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert names(path) == ["last words"]


class _Stuck(SpanExporter):
    """An exporter that hangs until it is let go."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def export(self, spans: object) -> SpanExportResult:
        self.release.wait(30)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.release.wait(30)


def test_shutdown_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    stuck = _Stuck()
    telemetry = Telemetry([SimpleSpanProcessor(stuck)], None)
    start = time.monotonic()
    telemetry.shutdown(timeout=0.2)
    took = time.monotonic() - start
    stuck.release.set()
    assert 0.15 < took < 5
    assert [r.getMessage() for r in caplog.records] == ["spans are lost: the exporter did not end within 0.2 s"]


def test_ids_do_not_follow_the_global_random() -> None:
    ids = SystemIds()
    random.seed(0)
    first = (ids.generate_trace_id(), ids.generate_span_id())
    random.seed(0)
    assert (ids.generate_trace_id(), ids.generate_span_id()) != first
    assert 0 < first[0] < 2**128
    assert 0 < first[1] < 2**64


def test_a_step_may_link_to_many_requests() -> None:
    memory = InMemorySpanExporter()
    made = provider("engine", [SimpleSpanProcessor(memory)])
    undo = provider_module.install(made)
    assert undo is not None
    links = [Link(SpanContext(n + 1, n + 1, is_remote=False)) for n in range(MAX_LINKS)]
    with tracing.span("engine.step", links=links):
        pass
    undo()
    [span] = memory.get_finished_spans()
    assert len(span.links) == MAX_LINKS == 1024


def test_long_values_are_cut() -> None:
    memory = InMemorySpanExporter()
    undo = provider_module.install(provider("engine", [SimpleSpanProcessor(memory)]))
    assert undo is not None
    with tracing.span("s", {"long": "x" * 10_000}):
        pass
    undo()
    [span] = memory.get_finished_spans()
    assert span.attributes == {"long": "x" * 4096}


def test_the_service_can_be_named_by_the_standard_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    assert provider("engine", []).resource.attributes["service.name"] == "mine"


def test_an_applications_own_provider_stays_and_shows_us_only_our_spans(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from enginebay import tracing
from enginebay.config import TelemetryConfig
from enginebay.telemetry import setup, read_spans

theirs, memory, path = TracerProvider(), InMemorySpanExporter(), Path(sys.argv[1])
theirs.add_span_processor(SimpleSpanProcessor(memory))
trace.set_tracer_provider(theirs)
telemetry = setup(TelemetryConfig(file=path), role="engine")
with trace.get_tracer("application").start_as_current_span("handler"):
    with tracing.span("engine.start"): pass
telemetry.shutdown()
assert [s.name for s in memory.get_finished_spans()] == ["engine.start", "handler"]
assert [s.name for s in read_spans(path)] == ["engine.start"]
assert trace.get_tracer_provider() is theirs
"""
    argv = [sys.executable, "-c", code, str(tmp_path / "trace.jsonl")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_only_ours_passes_our_scope() -> None:
    memory = InMemorySpanExporter()
    theirs = TracerProvider(shutdown_on_exit=False)
    theirs.add_span_processor(OnlyOurs(SimpleSpanProcessor(memory)))
    theirs.get_tracer("other").start_span("theirs").end()
    theirs.get_tracer(tracing.SCOPE).start_span("ours").end()
    spans: tuple[ReadableSpan, ...] = memory.get_finished_spans()
    assert [s.name for s in spans] == ["ours"]


def test_a_provider_that_takes_no_processors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "global_provider", NoOpTracerProvider)
    with pytest.raises(ConfigError) as caught:
        setup(TelemetryConfig(file=tmp_path / "t.jsonl"), role="engine")
    assert str(caught.value) == (
        "[telemetry]: this process has a tracer provider of its own (NoOpTracerProvider), which takes no span "
        "processors. Leave [telemetry] unset, or set that provider up after the engine."
    )


@pytest.mark.parametrize("how", ["config", "environment"])
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_an_endpoint_without_its_exporter_says_what_to_install(
    how: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("grpc", "http"):  # as if they were not installed
        monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.{name}.trace_exporter", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    endpoint = "http://127.0.0.1:4318"
    if how == "environment":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    with pytest.raises(ConfigError) as caught:
        setup(TelemetryConfig(endpoint=endpoint if how == "config" else None), role="engine")
    assert str(caught.value) == (
        f"Sending traces to an OTLP endpoint needs its exporter ({protocol}): pip install 'enginebay[otel]'. "
        "Without it, [telemetry] file writes them to a file."
    )


def test_an_installed_exporter_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str | None] = []
    memory = InMemorySpanExporter()

    def exporter(endpoint: str | None) -> SpanExporter:
        made.append(endpoint)
        return memory

    module = types.SimpleNamespace(OTLPSpanExporter=exporter)
    for name in ("grpc", "http"):
        monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.{name}.trace_exporter", module)
    for endpoint, protocol in [
        ("http://h:4318", "http/protobuf"),
        ("https://h/otlp", "http/protobuf"),
        ("http://h:4317", "grpc"),
    ]:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        telemetry = setup(TelemetryConfig(endpoint=endpoint), role="engine")
        with tracing.span("sent"):
            pass
        assert telemetry.flush()
        telemetry.shutdown()
    assert made == ["http://h:4318/v1/traces", "https://h/otlp", "http://h:4317"]
    assert [s.name for s in memory.get_finished_spans()] == ["sent"]  # it ended with the first set-up


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://h", "http://"])
def test_an_endpoint_that_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        setup(TelemetryConfig(endpoint=endpoint), role="engine")
    assert str(caught.value) == (
        f"[telemetry] endpoint = {endpoint!r}: not an http:// or https:// address, such as http://127.0.0.1:4318."
    )


def test_an_unknown_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(ConfigError) as caught:
        setup(TelemetryConfig(endpoint="http://h:4318"), role="engine")
    assert str(caught.value) == (
        "OTEL_EXPORTER_OTLP_PROTOCOL = 'http/json': unknown protocol. Known: grpc, http/protobuf."
    )


@pytest.fixture(autouse=True)
def _warnings_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
