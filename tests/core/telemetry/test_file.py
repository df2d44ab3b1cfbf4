"""The file exporter and the reader: what is written comes back, and what is damaged is named."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags

from enginebay.errors import ConfigError
from enginebay.telemetry import SpanRecord, _read, read_spans
from enginebay.telemetry._file import FileExporter
from enginebay.telemetry._otlp import KeyValue, _value, decode, plain
from support import records

MEMORY = InMemorySpanExporter()
PROVIDER = TracerProvider(shutdown_on_exit=False)
PROVIDER.add_span_processor(SimpleSpanProcessor(MEMORY))


def write(path: Path, count: int = 1) -> None:
    """Write ``count`` plain spans as one line."""
    MEMORY.clear()
    for number in range(count):
        PROVIDER.get_tracer("enginebay").start_span(f"span {number}").end()
    exporter = FileExporter(path)
    assert exporter.export(MEMORY.get_finished_spans()) is SpanExportResult.SUCCESS
    exporter.shutdown()


def test_every_part_of_a_span_comes_back(tmp_path: Path) -> None:
    MEMORY.clear()
    link = SpanContext(0xABC, 0xDEF, is_remote=True, trace_flags=TraceFlags(1))
    with PROVIDER.get_tracer("enginebay").start_as_current_span(
        "chat SmolLM2",
        kind=SpanKind.SERVER,
        attributes={"text": "naïve\n", "yes": True, "int": -(2**40), "float": 0.5, "list": ["a", "b"], "empty": []},
        links=[Link(link, {"why": "joined"})],
        start_time=1_700_000_000_000_000_001,
        end_on_exit=False,
    ) as span:
        span.add_event("first_token", {"n": 1}, timestamp=1_700_000_000_000_000_005)
        span.end(1_700_000_000_002_000_001)
    path = tmp_path / "trace.jsonl"
    exporter = FileExporter(path)
    exporter.export(MEMORY.get_finished_spans())
    exporter.shutdown()

    [record] = read_spans(path)
    assert record.name == "chat SmolLM2"
    assert record.kind == "server"
    assert record.start_ns == 1_700_000_000_000_000_001
    assert record.duration_ms == 2.0
    assert record.attributes == {
        "text": "naïve\n",
        "yes": True,
        "int": -(2**40),
        "float": 0.5,
        "list": ("a", "b"),
        "empty": (),
    }
    assert [(e.name, e.time_ns, e.attributes) for e in record.events] == [
        ("first_token", 1_700_000_000_000_000_005, {"n": 1})
    ]
    assert [(k.trace_id, k.span_id, k.attributes) for k in record.links] == [
        (f"{0xABC:032x}", f"{0xDEF:016x}", {"why": "joined"})
    ]
    assert record.status == "unset"


def test_a_line_is_otlp_json_as_its_specification_says(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, 2)
    [line] = path.read_text().splitlines()
    [resource] = json.loads(line)["resourceSpans"]
    [scope] = resource["scopeSpans"]
    assert scope["scope"] == {"name": "enginebay"}
    span = scope["spans"][0]
    assert len(span["traceId"]) == 32
    assert len(span["spanId"]) == 16
    assert "parentSpanId" not in span
    assert span["kind"] == 1
    assert isinstance(span["startTimeUnixNano"], str)
    assert int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"])


scalars = st.one_of(st.text(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))


@given(st.one_of(scalars, st.lists(scalars, max_size=4).map(tuple), st.binary()))
def test_values_survive_the_round_trip(value: object) -> None:
    from msgspec import json as msgjson

    line = msgjson.decode(msgjson.encode(KeyValue(key="k", value=_value(value))), type=KeyValue)
    back = plain(line.value)
    assert back == value
    assert type(back) is type(value)


def test_numbers_that_json_does_not_have() -> None:
    assert math.isnan(plain(_value(math.nan)))
    assert plain(_value(-math.inf)) == -math.inf


def test_lone_surrogates_are_escaped_not_fatal() -> None:
    assert _value("a\udc80é").string_value == "a\\udc80é"


def test_the_file_is_private_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path)
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(read_spans(path)) == 2


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "no" / "trace.jsonl"
    with pytest.raises(ConfigError) as caught:
        FileExporter(path)
    assert str(caught.value) == (
        f"[telemetry] file = {path}: the folder {path.parent} does not exist. Make it, or name another file."
    )
    assert not path.parent.exists()


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        FileExporter(tmp_path)
    assert str(caught.value) == f"[telemetry] file = {tmp_path}: cannot be written: Is a directory."


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(ConfigError) as caught:
        FileExporter(path)
    os.close(reader)
    assert str(caught.value) == f"[telemetry] file = {path}: is not a regular file. Name one, or a new file."
    with pytest.raises(ConfigError, match=r"cannot be written: No such device or address\.$"):
        FileExporter(path)  # without a reader, opening it would block for ever


def test_a_full_disk_loses_spans_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace.jsonl"
    write(path)
    exporter = FileExporter(path)
    real, room = os.write, [10]

    def full(fd: int, data: bytes) -> int:
        if not room:
            raise OSError(28, "No space left on device")
        return real(fd, data[: room.pop()])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        spans = MEMORY.get_finished_spans()
        assert exporter.export(spans) is SpanExportResult.FAILURE
        assert exporter.export(spans) is SpanExportResult.FAILURE
    assert [r.getMessage() for r in caplog.records] == [
        f"{path}: spans are lost, the file cannot be written: No space left on device"
    ]
    assert exporter.export(spans) is SpanExportResult.SUCCESS
    exporter.shutdown()
    lines = [decode(line).resource_spans[0].scope_spans[0].spans for line in path.read_bytes().splitlines()]
    assert [len(spans) for spans in lines] == [1, 1]  # and no half line between them


def test_of_several_spans_of_one_id_the_first_counts(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    records.write(path, [records.span(1, "first", 5, 6), records.span(1, "other trace", 4, 5, trace=2)])
    with path.open("ab") as file:
        file.write(records.line([records.span(1, "told again", 0, 6)]) + b"\n")
    assert [one.name for one in read_spans(path)] == ["other trace", "first"]


def test_a_last_line_that_is_half_written_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "trace.jsonl"
    whole = records.line([records.span(2, "b", 1, 2)])
    begin = records.line([records.span(1, "a", 0, 1)]) + b"\n"
    path.write_bytes(begin + whole)
    assert [one.name for one in read_spans(path)] == ["a", "b"]  # whole but for its end
    assert caplog.messages == []
    path.write_bytes(begin + whole[:-9])
    assert [one.name for one in read_spans(path)] == ["a"]
    assert caplog.messages == [f"{path}: the last line is half written, and left out"]


def test_reading_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_read, "_TOLD_BYTES", 1000)
    path, told = tmp_path / "trace.jsonl", []
    records.write(path, [records.span(n, "a", 0, 1) for n in range(1, 21)])
    read_spans(path, lambda done, size: told.append((done, size)))
    size = path.stat().st_size
    assert [end for _, end in told] == [size] * (len(told))
    steps = [b - a for a, b in itertools.pairwise([0, *(done for done, _ in told)])]
    assert len(steps) > 3
    assert all(1000 <= step < 1400 for step in steps)


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    with pytest.raises(ConfigError) as caught:
        read_spans(path)
    assert str(caught.value) == (
        f"{path}: no such file. A trace file is written by enginebay generate --trace FILE, "
        "or by [telemetry] file in engine.toml."
    )


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_spans(tmp_path)
    assert str(caught.value) == f"{tmp_path}: cannot be read: Is a directory."


ONE_SPAN = '{"resourceSpans":[{"scopeSpans":[{"spans":[%s]}]}]}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Input data was truncated"),
        ("hello", "JSON is malformed: invalid character (byte 0)"),
        ("[1]", "Expected `object`, got `array`"),
        ('{"resourceSpans": 3}', "Expected `array`, got `int` - at `$.resourceSpans`"),
        (
            ONE_SPAN % "{}",
            "Object missing required field `traceId` - at `$.resourceSpans[0].scopeSpans[0].spans[0]`",
        ),
        (ONE_SPAN % '{"traceId":"xy","spanId":""}', "'xy' is not an id of 32 hex digits"),
        (
            ONE_SPAN % f'{{"traceId":"{"a" * 32}","spanId":"{"b" * 16}","startTimeUnixNano":"noon"}}',
            "invalid literal for int() with base 10: 'noon'",
        ),
        (
            ONE_SPAN % f'{{"traceId":"{"a" * 32}","spanId":"{"b" * 16}","startTimeUnixNano":"{2**64}"}}',
            "18446744073709551616 is not a time in nanoseconds",
        ),
        ("[" * 100_000, "Expected `object`, got `array`"),
    ],
)
def test_a_damaged_line_is_named(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path)
    with path.open("a") as file:
        file.write(f"\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        read_spans(path)
    assert str(caught.value) == f"{path}: line 3 is damaged, or no line of OTLP JSON: {reason}."


def test_nesting_and_bad_utf8_are_damage_not_crashes(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"x":' + "[" * 200_000)
    with pytest.raises(ConfigError, match=r"line 1 is damaged, or no line of OTLP JSON: nested too deeply\.$"):
        read_spans(path)
    path.write_bytes(b'{"resourceSpans":[{"scopeSpans":[{"scope":{"name":"\xff"}}]}]}')
    with pytest.raises(ConfigError, match=r"line 1 is damaged, or no line of OTLP JSON: "):
        read_spans(path)


def test_lines_of_others_are_read(tmp_path: Path) -> None:
    """Integers as numbers, unknown keys, capital ids, a value of none: all within the specification."""
    path = tmp_path / "other.jsonl"
    span = (
        f'{{"traceId":"{"A" * 32}","spanId":"{"b" * 16}","name":"x","kind":99,"startTimeUnixNano":5,'
        '"endTimeUnixNano":"7","attributes":[{"key":"a","value":{"intValue":3}},{"key":"n"}],'
        '"status":{"code":2,"message":"m"},"new":1}'
    )
    path.write_text(ONE_SPAN % span)
    assert read_spans(path) == [
        SpanRecord(
            trace_id="a" * 32,
            span_id="b" * 16,
            parent_id="",
            name="x",
            kind="unspecified",
            start_ns=5,
            end_ns=7,
            status="error",
            message="m",
            attributes={"a": 3, "n": None},
        )
    ]


@given(st.binary(max_size=200))
def test_the_decoder_raises_only_what_the_reader_catches(data: bytes) -> None:
    with contextlib.suppress(ValueError, RecursionError):  # what read_spans turns into its message
        decode(data)
