"""Lanes: nothing lies upon anything else."""

from __future__ import annotations

from hypothesis import given

from enginebay.telemetry import SpanRecord, forest
from enginebay.telemetry._layout import Process, layout
from support.records import span, traces

ENGINE = {"enginebay.role": "engine", "process.pid": 10}
WORKER = {"enginebay.role": "worker", "process.pid": 5}


def drawn(processes: list[Process]) -> dict[str, dict[str, list[tuple[str, int]]]]:
    return {p.label: {n.label: [(s.node.span.name, s.depth) for s in n.places] for n in p.lanes} for p in processes}


@given(traces())
def test_two_spans_of_a_lane_are_apart_or_within_one_another(spans: list[SpanRecord]) -> None:
    processes = layout(forest(spans))
    placed = [place.node.span for p in processes for lane in p.lanes for place in lane.places]
    assert sorted(s.span_id for s in placed) == sorted(s.span_id for s in spans)
    for process in processes:
        assert {p.node.span.resource["process.pid"] for lane in process.lanes for p in lane.places} == {process.pid}
        for lane in process.lanes:
            above: list[SpanRecord] = []
            for place in lane.places:
                one = place.node.span
                while len(above) > place.depth:
                    assert above.pop().end_ns <= one.start_ns
                assert len(above) == place.depth
                if above:
                    assert place.node.parent is not None
                    assert place.node.parent.span is above[-1], "a span lies within its parent alone"
                    assert above[-1].start_ns <= one.start_ns <= one.end_ns <= above[-1].end_ns
                above.append(one)
            assert lane.rows == 1 + max(place.depth for place in lane.places)


def test_a_step_is_one_lane_also_with_what_takes_no_time() -> None:
    made = [
        span(1, "engine.step", 0, 9, resource=ENGINE),
        span(2, "schedule", 0, 1, 1, resource=ENGINE),
        span(3, "execute_model", 1, 7, 1, resource=ENGINE),
        span(4, "worker.execute_model", 2, 6, 3, resource=WORKER, attributes={"enginebay.rank": 1}),
        span(5, "update", 7, 9, 1, resource=ENGINE),
        span(6, "sample", 7, 7, 1, resource=ENGINE),
    ]
    assert drawn(layout(forest(made))) == {
        "engine, pid 10": {
            "steps": [("engine.step", 0), ("schedule", 1), ("execute_model", 1), ("sample", 1), ("update", 1)]
        },
        "worker rank 1, pid 5": {"steps": [("worker.execute_model", 0)]},
    }


def test_what_runs_at_once_has_lanes_of_its_own_which_are_used_again() -> None:
    made = [span(n, "chat", start, end, trace=n) for n, (start, end) in enumerate([(0, 5), (1, 9), (6, 8)], start=1)]
    assert drawn(layout(forest(made))) == {"process": {"chat 1": [("chat", 0), ("chat", 0)], "chat 2": [("chat", 0)]}}


def test_the_engine_comes_first_and_workers_say_who_they_are() -> None:
    told = {"enginebay.rank": 0, "enginebay.generation": 2}
    made = [
        span(1, "a", 0, 1, resource=WORKER, attributes=told),
        span(2, "b", 5, 6, trace=2, resource=ENGINE),
        span(3, "c", 2, 3, trace=3, resource={"service.name": "client\n"}),
    ]
    assert [p.label for p in layout(forest(made))] == [
        "engine, pid 10",
        "worker rank 0, generation 2, pid 5",
        "client\\n",
    ]
