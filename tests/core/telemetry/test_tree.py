"""Trees and tables of spans, and `enginebay trace`: compared as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from enginebay.cli.trace import command
from enginebay.errors import ConfigError
from enginebay.telemetry import SpanEvent, SpanLink, SpanRecord, _otlp, render_steps, render_tree

MS = 1_000_000


def span(number: int, name: str, start: float, end: float, parent: int = 0, trace: int = 1, **more: Any) -> SpanRecord:
    """A record with times in ms and ids from numbers."""
    return SpanRecord(
        trace_id=f"{trace:032x}",
        span_id=f"{number:016x}",
        parent_id=f"{parent:016x}" if parent else "",
        name=name,
        kind="internal",
        start_ns=int(start * MS),
        end_ns=int(end * MS),
        **more,
    )


START = [
    span(3, "executor.launch", 20, 100, 1, attributes={"enginebay.executor": "uni"}),
    span(
        4, "worker.init", 25, 75, 3, status="error", message="ValueError: no", attributes={"error.type": "ValueError"}
    ),
    span(1, "engine.start", 0, 100, attributes={"enginebay.model": "tiny"}, links=(SpanLink(trace_id="", span_id=""),)),
    span(2, "config.resolve", 1, 2.5, 1, events=(SpanEvent(name="read", time_ns=2 * MS, attributes={"lines": 7}),)),
]


def test_tree() -> None:
    assert render_tree(START) == "\n".join(
        [
            "trace 00000000000000000000000000000001",
            "engine.start            100.00 ms       → 1 link  model=tiny",
            "├─ config.resolve         1.50 ms   2%",
            "│    · read              +1.00 ms       lines=7",
            "└─ executor.launch       80.00 ms  80%  executor=uni",
            "   └─ worker.init        50.00 ms  62%  ERROR ValueError: no  error.type=ValueError",
        ]
    )


def test_traces_stand_in_start_order() -> None:
    text = render_tree([span(1, "late", 5, 6, trace=1), span(2, "early", 1, 2, trace=2)])
    assert [line.split()[0] for line in text.splitlines() if line] == ["trace", "early", "trace", "late"]


def test_a_span_with_a_parent_elsewhere_is_a_root() -> None:
    text = render_tree([span(2, "chat tiny", 0, 1, parent=99)])
    assert text.splitlines()[1] == "chat tiny        1.00 ms"


def test_attributes_beyond_the_limit_are_counted() -> None:
    many = span(1, "s", 0, 1, attributes={f"a{n}": n for n in range(10)})
    for columns in range(40, 100):
        line = render_tree([many], columns=columns).splitlines()[1]
        assert len(line) <= columns
        shown = line.count("=")
        assert shown == 10 or line.endswith(f"  … {10 - shown} more")
    assert render_tree([many], columns=45).endswith("  a0=0  a1=1  … 8 more")
    assert render_tree([many], columns=None).endswith("  a8=8  a9=9")


def test_a_ring_of_parents_is_shown_and_ends() -> None:
    text = render_tree([span(1, "a", 0, 1, 2), span(2, "b", 0, 1, 1), span(3, "self", 2, 3, 3)])
    assert sorted(line.lstrip("└─ ").split()[0] for line in text.splitlines()[1:]) == ["a", "b", "self"]


def test_depth_has_no_limit() -> None:
    deep = [span(n + 1, "s", n, 6000, n) for n in range(3000)]
    assert len(render_tree(deep).splitlines()) == 3001


def test_values_cannot_forge_lines() -> None:
    text = render_tree([span(1, "a\nb", 0, 1, attributes={"k\n": "v\r\nw"}, status="error", message="x\ty")])
    assert text.splitlines()[1:] == ["a\\nb        1.00 ms       ERROR x\\ty  k\\n=v\\r\\nw"]


def test_long_values_are_cut() -> None:
    text = render_tree([span(1, "a", 0, 1, attributes={"k": "x" * 500})])
    assert text.endswith("k=" + "x" * 79 + "…")


def test_steps_as_a_table() -> None:
    steps = [span(n, "engine.step", n, 2 * n, trace=n) for n in range(1, 101)]
    steps.append(span(200, "schedule", 1.5, 1.75, 1, status="error"))
    assert render_steps(steps) == "\n".join(
        [
            "span           count   median ms      p99 ms  failed",
            "engine.step      100      50.000      99.000       0",
            "schedule           1       0.250       0.250       1",
        ]
    )


def write(path: Path, spans: list[SpanRecord]) -> None:
    """The records as a trace file, one line each."""
    lines = []
    for s in spans:
        made = _otlp.Span(
            trace_id=s.trace_id,
            span_id=s.span_id,
            parent_span_id=s.parent_id,
            name=s.name,
            start_time_unix_nano=str(s.start_ns),
            end_time_unix_nano=str(s.end_ns),
            attributes=[_otlp.KeyValue(key=k, value=_otlp._value(v)) for k, v in s.attributes.items()],
            status=_otlp.Status(code=["unset", "ok", "error"].index(s.status), message=s.message),
        )
        line = _otlp.Line(resource_spans=[_otlp.ResourceSpans(scope_spans=[_otlp.ScopeSpans(spans=[made])])])
        lines.append(_otlp._encoder.encode(line))
    path.write_bytes(b"\n".join(lines) + b"\n")


def show(*argv: object) -> str:
    result = CliRunner().invoke(command, [str(a) for a in argv], catch_exceptions=False, standalone_mode=False)
    return result.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    steps = [span(100 + n, "engine.step", 200 + n, 201 + n, trace=100 + n) for n in range(3)]
    write(path, [span(1, "engine.start", 0, 100), *steps, span(50, "chat tiny", 200, 210, trace=2)])
    return path


def test_steps_are_folded(file: Path) -> None:
    assert show(file) == "\n".join(
        [
            "trace 00000000000000000000000000000001",
            "engine.start      100.00 ms",
            "",
            "trace 00000000000000000000000000000002",
            "chat tiny       10.00 ms",
            "",
            "3 recorded steps (--all shows each)",
            "span           count   median ms      p99 ms  failed",
            "engine.step        3       1.000       1.000       0",
            "",
        ]
    )


def test_all_shows_each(file: Path) -> None:
    assert [line for line in show(file, "--all").splitlines() if line.startswith("trace")] == [
        f"trace {n:032x}" for n in (1, 100, 2, 101, 102)
    ]


def test_one_trace_by_the_beginning_of_its_id(file: Path) -> None:
    assert show(file, "--trace-id", f"{100:032X}").splitlines()[0] == f"trace {100:032x}"
    with pytest.raises(ConfigError) as caught:
        show(file, "--trace-id", "abc")
    assert str(caught.value) == (
        f"{file}: no trace id begins with 'abc'. It holds 5: {1:032x}, {100:032x}, {2:032x}, …"
    )


def test_many_requests_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, [span(n, "chat tiny", n, n + 1, trace=n) for n in range(1, 31)])
    lines = show(path).splitlines()
    assert len([line for line in lines if line.startswith("trace")]) == 20
    assert lines[-1] == "10 more traces: --all shows them."


def test_recoveries_are_shown_however_many_requests_there_are(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    many = [span(n, "chat tiny", n, n + 1, trace=n) for n in range(1, 31)]
    write(path, [*many, span(99, "engine.recover", 40, 41, trace=99), span(98, "engine.start", 50, 51, trace=98)])
    lines = show(path).splitlines()
    assert [line.split()[0] for line in lines if line.startswith("engine")] == ["engine.recover", "engine.start"]
    assert lines[-1] == "10 more traces: --all shows them."


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, [span(1, "a\x1b[31m", 0, 1, attributes={"k": "\u202ev"})])
    output = show(path)
    assert "a\\u001b[31m" in output
    assert "k=\\u202ev" in output
    assert "\x1b" not in output


def test_an_empty_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.touch()
    assert show(path) == f"{path} holds no spans.\n"


@pytest.mark.parametrize("content", [None, b"{\n"])
def test_what_cannot_be_shown_is_one_line_and_exit_2(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from enginebay.cli import main

    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit) as end:
        main(["trace", str(path)])
    captured = capsys.readouterr()
    assert end.value.code == 2
    assert captured.out == ""
    assert captured.err == (
        f"enginebay: {path}: no such file. A trace file is written by enginebay generate --trace FILE, "
        "or by [telemetry] file in engine.toml.\n"
        if content is None
        else f"enginebay: {path}: line 1 is damaged, or no line of OTLP JSON: Input data was truncated.\n"
    )
