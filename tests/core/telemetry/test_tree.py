"""Trees of spans, compared as text."""

from __future__ import annotations

from enginebay.telemetry import SpanEvent, SpanLink, render_tree
from support.records import MS, span

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
