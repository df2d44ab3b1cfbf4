"""Trees of spans: their kinds, and how time is shared out in them."""

from __future__ import annotations

import pytest
from hypothesis import given

from enginebay.telemetry import SpanRecord, forest
from enginebay.telemetry._forest import Node, shares, walk
from support.records import MS, span, traces

REQUEST = {"gen_ai.operation.name": "chat", "enginebay.request.id": "r"}


def nodes(spans: list[SpanRecord]) -> dict[str, Node]:
    return {node.span.name: node for root in forest(spans) for node in walk(root)}


@given(traces())
def test_what_the_spans_have_is_the_roots_time(spans: list[SpanRecord]) -> None:
    (root,) = forest(spans)
    parts = shares(root)
    assert len(parts) == len(spans)
    assert sum(parts.values()) == pytest.approx(root.span.end_ns - root.span.start_ns)
    for node in walk(root):
        assert -1e-6 <= parts[id(node)] <= node.own_ns() + 1e-6


@given(traces(inside=True))
def test_a_spans_own_time_is_where_no_child_runs(spans: list[SpanRecord]) -> None:
    (root,) = forest(spans)
    for node in walk(root):
        inside = range(node.span.start_ns // MS, node.span.end_ns // MS)
        free = [t for t in inside if not any(c.span.start_ns <= t * MS < c.span.end_ns for c in node.children)]
        assert node.own_ns() == len(free) * MS


def test_ranks_that_run_at_once_have_equal_parts() -> None:
    made = [span(1, "launch", 0, 10), span(2, "rank 0", 2, 8, 1), span(3, "rank 1", 4, 10, 1)]
    found = nodes(made)
    parts = shares(found["launch"])
    assert {name: parts[id(node)] / MS for name, node in found.items()} == {"launch": 2, "rank 0": 4, "rank 1": 4}


def test_what_sticks_out_of_a_parent_counts_for_nothing() -> None:
    found = nodes([span(1, "a", 10, 20), span(2, "b", 5, 12, 1), span(3, "c", 30, 40, 2)])
    parts = shares(found["a"])
    assert {name: parts[id(node)] / MS for name, node in found.items()} == {"a": 8, "b": 2, "c": 0}


def test_kinds_reach_down_and_begin_anew_below_a_clients_span() -> None:
    found = nodes(
        [
            span(1, "POST", 0, 10),
            span(2, "chat tiny", 1, 9, 1, attributes=REQUEST),
            span(3, "decode", 2, 9, 2),
            span(4, "engine.step", 2, 3, trace=2),
            span(5, "schedule", 2, 3, 4, trace=2),
            span(6, "engine.recover", 2, 3, trace=3),
            span(7, "engine.start", 2, 3, trace=4),
        ]
    )
    assert {name: (node.kind, node.is_head) for name, node in found.items()} == {
        "POST": ("POST", True),
        "chat tiny": ("request", True),
        "decode": ("request", False),
        "engine.step": ("step", True),
        "schedule": ("step", False),
        "engine.recover": ("recovery", True),
        "engine.start": ("start", True),
    }


def test_of_a_ring_the_first_is_the_root() -> None:
    roots = forest([span(1, "b", 1, 2, 2), span(2, "a", 0, 2, 1), span(3, "self", 5, 6, 3)])
    assert [[node.span.name for node in walk(root)] for root in roots] == [["a", "b"], ["self"]]


def test_of_two_spans_of_one_id_the_first_has_the_children() -> None:
    first, second = span(1, "told first", 5, 6), span(1, "told later", 0, 6)
    roots = forest([first, second, span(2, "child", 5, 6, 1)])
    assert {root.span.name: len(root.children) for root in roots} == {"told first": 1, "told later": 0}


def test_one_id_in_two_traces_is_two_spans() -> None:
    roots = forest([span(1, "a", 0, 1, trace=1), span(1, "b", 0, 1, trace=2), span(2, "c", 0, 1, 1, trace=2)])
    assert {root.span.name: len(root.children) for root in roots} == {"a": 0, "b": 1}


def test_depth_has_no_limit() -> None:
    (root,) = forest([span(n + 1, "s", n, 6000, n) for n in range(3000)])
    assert sum(shares(root).values()) == pytest.approx(6000 * MS)
