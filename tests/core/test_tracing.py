"""The span helper, trace contexts as strings, and the gate that decides which steps are recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from enginebay import tracing
from enginebay.telemetry import _provider
from enginebay.tracing import StepGate, parse_traceparent, traceparent


@pytest.fixture
def memory() -> Iterator[InMemorySpanExporter]:
    """What was recorded, through a private provider."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    undo = _provider.install(provider)
    assert undo is not None
    yield exporter
    undo()


def test_without_a_provider_nothing_is_recorded() -> None:
    with tracing.span("unseen") as span:
        assert not span.is_recording()
        assert traceparent() == ""


def test_spans_nest(memory: InMemorySpanExporter) -> None:
    with tracing.span("outer", {"a": 1}) as outer, tracing.span("inner", kind=SpanKind.SERVER):
        pass
    inner_done, outer_done = memory.get_finished_spans()
    assert inner_done.parent == outer.get_span_context()
    assert inner_done.kind is SpanKind.SERVER
    assert outer_done.attributes == {"a": 1}


def test_the_parent_may_be_a_string_of_another_process(memory: InMemorySpanExporter) -> None:
    with tracing.span("here", parent=f"00-{'a' * 32}-{'b' * 16}-01", start_ns=123):
        pass
    [span] = memory.get_finished_spans()
    assert span.context.trace_id == int("a" * 32, 16)
    assert span.parent is not None
    assert span.parent.span_id == int("b" * 16, 16)
    assert span.start_time == 123


def test_a_caller_that_does_not_sample_is_followed(memory: InMemorySpanExporter) -> None:
    with tracing.span("here", parent=f"00-{'a' * 32}-{'b' * 16}-00"):
        pass
    assert memory.get_finished_spans() == ()


def test_a_failure_is_recorded_and_goes_on(memory: InMemorySpanExporter) -> None:
    with pytest.raises(KeyError), tracing.span("failing"):
        raise KeyError("x")
    [span] = memory.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "KeyError: 'x'"
    assert span.attributes == {"error.type": "KeyError"}
    assert [event.name for event in span.events] == ["exception"]


def test_an_interrupt_is_a_failure_too(memory: InMemorySpanExporter) -> None:
    with pytest.raises(KeyboardInterrupt), tracing.span("failing"):
        raise KeyboardInterrupt
    [span] = memory.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.integers(0, 255))
def test_traceparent_round_trip(trace_id: int, span_id: int, flags: int) -> None:
    value = f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
    context = parse_traceparent(value)
    assert context is not None
    span = trace.get_current_span(context)
    assert span.get_span_context().is_remote
    assert traceparent(span) == value


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"00-{'a' * 32}-{'b' * 16}",
        f"01-{'a' * 32}-{'b' * 16}-01",  # another version
        f"ff-{'a' * 32}-{'b' * 16}-01",
        f"00-{'0' * 32}-{'b' * 16}-01",  # zero ids are invalid
        f"00-{'a' * 32}-{'0' * 16}-01",
        f"00-{'A' * 32}-{'b' * 16}-01",  # capitals
        f"00-{'a' * 31}-{'b' * 16}-01",
        f"00-{'a' * 32}-{'b' * 16}-1",
        f"00-{'a' * 32}-{'b' * 16}-01-x",
        f" 00-{'a' * 32}-{'b' * 16}-01",
        f"00-{'a' * 32}-{'b' * 16}-01\n",
        f"00-+{'a' * 31}-{'b' * 16}-01",  # int() would take the sign
        f"00-{'a_' * 16}-{'b' * 16}-01",  # and the underscores
        f"00-{'٣' * 32}-{'b' * 16}-01",  # and digits of other scripts
    ],
)
def test_traceparent_is_parsed_strictly(value: str) -> None:
    assert parse_traceparent(value) is None


@given(st.text(max_size=60))
def test_any_text_is_none_or_a_context(value: str) -> None:
    context = parse_traceparent(value)
    assert context is None or traceparent(trace.get_current_span(context)) == value


def test_one_step_in_so_many_is_recorded() -> None:
    gate = StepGate(3)
    assert [step for step in range(10) if gate.record(step)] == [0, 3, 6, 9]
    assert all(StepGate(1).record(step) for step in range(5))


def test_a_step_that_stands_out_is_slow() -> None:
    gate = StepGate(100, slow_factor=4.0)
    assert not any(gate.is_slow(1_000) for _ in range(50))
    assert not gate.is_slow(3_900)
    assert gate.is_slow(50_000)
    assert not gate.is_slow(1_000)


def test_the_gate_learns_before_it_judges() -> None:
    gate = StepGate(100)
    assert not gate.is_slow(1)
    assert not gate.is_slow(10**12)


def test_a_change_of_pace_is_learned() -> None:
    gate = StepGate(100, slow_factor=4.0)
    for _ in range(100):
        gate.is_slow(1_000)
    slow = [gate.is_slow(10_000) for _ in range(200)]
    assert slow[0]
    assert not any(slow[50:])


@given(st.lists(st.integers(0, 10**12), max_size=100))
def test_the_gate_is_a_function_of_what_it_was_told(durations: list[int]) -> None:
    first, second = StepGate(10), StepGate(10)
    assert [first.is_slow(d) for d in durations] == [second.is_slow(d) for d in durations]
