"""The slowest path of each kind."""

from __future__ import annotations

import itertools

from hypothesis import given

from enginebay.telemetry import SpanRecord, forest, render_slowest, slowest
from enginebay.telemetry._forest import walk
from enginebay.telemetry._slowest import critical, path
from support.records import span, traces

REQUEST = {"gen_ai.operation.name": "chat", "enginebay.request.id": "r"}


@given(traces())
def test_the_path_is_a_chain_of_children_on_the_critical_path(spans: list[SpanRecord]) -> None:
    (root,) = forest(spans)
    chain = path(root)
    assert chain[0] is root
    for above, below in itertools.pairwise(chain):
        assert below.parent is above
        assert below in critical(above)
    end = chain[-1].span
    rest = [child.span.end_ns - child.span.start_ns for child in critical(chain[-1])]
    assert max(rest, default=0) < max(1, (end.end_ns - end.start_ns) * 0.05)


@given(traces(inside=True))
def test_what_is_waited_for_never_runs_at_once(spans: list[SpanRecord]) -> None:
    (root,) = forest(spans)
    for node in walk(root):
        waited = critical(node)
        for later, sooner in itertools.pairwise(waited):
            assert sooner.span.end_ns <= later.span.start_ns
        took = [child for child in node.children if child.span.end_ns > child.span.start_ns]
        assert bool(waited) == bool(took)
        if waited:
            assert waited[0].span.end_ns == max(child.span.end_ns for child in took)


def test_each_kind_has_its_slowest() -> None:
    spans = [
        span(1, "engine.start", 0, 100),
        span(2, "config.resolve", 0, 5, 1),
        span(3, "executor.launch", 5, 99, 1),
        span(4, "worker.init", 10, 60, 3, attributes={"enginebay.rank": 0}),
        span(5, "worker.init", 10, 98, 3, attributes={"enginebay.rank": 1}),
        span(6, "worker.load_model", 10, 90, 5, attributes={"enginebay.rank": 1}),
        span(8, "worker.memory_snapshot", 20, 23, 6, attributes={"enginebay.rank": 1}),
        span(7, "worker.warm_up", 90, 98, 5, attributes={"enginebay.rank": 1}),
        span(10, "chat tiny", 200, 250, trace=2, attributes=REQUEST),
        span(11, "chat tiny", 200, 280, trace=3, attributes=REQUEST, status="error"),
        span(12, "prefill", 200, 270, 11, trace=3),
        span(13, "decode", 270, 280, 11, trace=3),
    ]
    paths = slowest(forest(spans))
    assert render_slowest(paths) == "\n".join(
        [
            f"slowest start, trace {1:032x}",
            "  engine.start                          100.00 ms 100%  own       1.00 ms",
            "    executor.launch                      94.00 ms  94%  own       6.00 ms",
            "      worker.init (rank 1)               88.00 ms  88%  own       0.00 ms",
            "        worker.load_model (rank 1)       80.00 ms  80%  own      77.00 ms",
            "",
            f"slowest request, trace {3:032x}",
            "  chat tiny       80.00 ms 100%  own       0.00 ms  ERROR",
            "    prefill       70.00 ms  88%  own      70.00 ms",
        ]
    )


def test_a_file_of_others_shows_its_own_kinds() -> None:
    spans = [span(1, "GET", 0, 5), span(2, "GET", 0, 9, trace=2), span(3, "PUT", 0, 1, trace=3)]
    assert {kind: nodes[0].span.span_id for kind, nodes in slowest(forest(spans)).items()} == {
        "GET": f"{2:016x}",
        "PUT": f"{3:016x}",
    }
