"""The file for Perfetto, held to what its reader asks of the Trace Event Format."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from hypothesis import given

from enginebay.telemetry import SpanEvent, SpanLink, SpanRecord, forest, perfetto
from enginebay.telemetry._perfetto import BEGIN
from support.records import MS, span, traces

_EPSILON = 1e-6


def checked(content: bytes) -> list[dict[str, Any]]:
    """The events of a file, which a reader takes: whole, in order, nested, each arrow from a slice to a later one."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    assert content.startswith(BEGIN)
    file = json.loads(content, parse_constant=refuse)
    events: list[dict[str, Any]] = file["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    tids = [tid for _, tid in named]
    assert len(set(tids)) == len(tids), "a thread's number is its own"
    for event in events:
        assert isinstance(event["name"], str)
        assert event["pid"] in processes
        assert event["pid"] > 0
        if event["ph"] != "M":
            assert (event["pid"], event["tid"]) in named
            assert math.isfinite(event["ts"])
    slices = [e for e in events if e["ph"] == "X"]
    assert [e["ts"] for e in slices] == sorted(e["ts"] for e in slices)
    _check_nesting(slices)
    _check_arrows(events)
    return events


def _check_nesting(slices: list[dict[str, Any]]) -> None:
    stacks: dict[int, list[float]] = {}
    for event in slices:
        assert event["dur"] >= 0
        stack = stacks.setdefault(event["tid"], [])
        while stack and stack[-1] <= event["ts"] + _EPSILON:
            stack.pop()
        end = event["ts"] + event["dur"]
        assert not stack or end <= stack[-1] + _EPSILON, "a slice sticks out of the one it lies in"
        stack.append(end)


def _check_arrows(events: list[dict[str, Any]]) -> None:
    """Both ends once, in order; each stands right behind the slice that it belongs to, at its start."""
    begun: dict[int, dict[str, Any]] = {}
    last: dict[str, Any] = {}
    for event in events:
        if event["ph"] == "X":
            last = event
        elif event["ph"] in "sf":
            assert (event["ts"], event["pid"], event["tid"]) == (last["ts"], last["pid"], last["tid"])
            if event["ph"] == "s":
                assert event["id"] not in begun
                begun[event["id"]] = event
            else:
                assert event["bp"] == "e"
                first = begun[event["id"]]
                assert (first["name"], first["cat"]) == (event["name"], event["cat"])
                assert first["ts"] <= event["ts"]
    ends = Counter(event["id"] for event in events if event["ph"] == "f")
    assert ends == Counter(begun.keys())


@given(traces())
def test_any_trace_makes_a_file_that_is_read(spans: list[SpanRecord]) -> None:
    events = checked(perfetto(forest(spans)))
    assert sorted(e["args"]["span_id"] for e in events if e["ph"] == "X") == sorted(s.span_id for s in spans)


def test_what_a_file_says() -> None:
    made = [
        span(
            1,
            "engine.step",
            1000,
            1008,
            resource={"enginebay.role": "engine", "process.pid": 7},
            attributes={"n": 1, "big": 1 << 60, "not": math.nan, "many": (1, "b"), "raw": b"\x01"},
            events=(SpanEvent(name="lost", time_ns=1002 * MS, attributes={"rank": 1}),),
            status="error",
            message="gone",
        ),
        span(2, "worker.execute_model", 1001, 1003, 1, resource={"enginebay.role": "worker", "process.pid": 8}),
        span(
            3,
            "chat",
            999,
            1020,
            trace=2,
            resource={"enginebay.role": "engine", "process.pid": 7},
            links=(
                SpanLink(trace_id=f"{1:032x}", span_id=f"{1:016x}"),
                SpanLink(trace_id=f"{9:032x}", span_id=f"{9:016x}"),
            ),
        ),
    ]
    events = checked(perfetto(forest(made)))
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["engine, pid 7", "worker, pid 8"]
    chat, step, worker = [e for e in events if e["ph"] == "X"]
    assert (chat["name"], chat["ts"], chat["dur"], chat["pid"]) == ("chat", 0, 21_000, 7)
    assert step["args"] == {
        "n": 1,
        "big": str(1 << 60),
        "not": "nan",
        "many": [1, "b"],
        "raw": "01",
        "trace_id": f"{1:032x}",
        "span_id": f"{1:016x}",
        "status": "error",
        "message": "gone",
    }
    (instant,) = [e for e in events if e["ph"] == "i"]
    assert (instant["name"], instant["ts"], instant["tid"], instant["args"]) == ("lost", 3000, step["tid"], {"rank": 1})
    arrows = [(e["ph"], e["name"], e["tid"]) for e in events if e["ph"] in "sf"]
    assert sorted(arrows) == sorted(
        [
            ("s", "link", chat["tid"]),
            ("f", "link", step["tid"]),
            ("s", "child", step["tid"]),
            ("f", "child", worker["tid"]),
        ]
    )


def test_of_slices_that_begin_at_once_the_outer_one_comes_first() -> None:
    made = [span(3, "inner", 0, 1, 2), span(2, "middle", 0, 2, 1), span(1, "outer", 0, 3)]
    events = checked(perfetto(forest(made)))
    assert [e["name"] for e in events if e["ph"] == "X"] == ["outer", "middle", "inner"]


def test_two_hosts_may_have_one_number() -> None:
    made = [
        span(n, "a", 0, 1, trace=n, resource={"process.pid": 7, "host.name": host}) for n, host in ((1, "x"), (2, "y"))
    ]
    pids = {e["pid"] for e in checked(perfetto(forest(made))) if e["ph"] == "X"}
    assert len(pids) == 2
    assert 7 in pids


def test_nothing_is_a_file_too() -> None:
    assert checked(perfetto([])) == []
