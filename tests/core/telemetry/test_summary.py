"""The table of all spans."""

from __future__ import annotations

import pytest
from hypothesis import given

from enginebay.telemetry import SpanRecord, forest, render_summary, summary
from enginebay.telemetry._summary import percentile
from support.records import span, traces

REQUEST = {"gen_ai.operation.name": "chat", "enginebay.request.id": "r"}


def test_the_table() -> None:
    spans = [span(n, "engine.step", n, n + 2, trace=n) for n in range(1, 101)]
    spans += [span(200, "schedule", 1.5, 2, 1, status="error"), span(300, "other", 0, 1, trace=300)]
    spans += [span(400, "chat tiny", 0, 8, trace=400, attributes=REQUEST), span(401, "decode", 2, 8, 400, trace=400)]
    assert render_summary(summary(forest(spans))).splitlines() == [
        "span             count    median ms       p99 ms       own ms   share  failed",
        "request (1)                                             8.000",
        "  decode             1        6.000        6.000        6.000   75.0%       0",
        "  chat tiny          1        8.000        8.000        2.000   25.0%       0",
        "step (100)                                            200.000",
        "  engine.step      100        2.000        2.000      199.500   99.8%       0",
        "  schedule           1        0.500        0.500        0.500    0.2%       1",
        "other (1)                                               1.000",
        "  other              1        1.000        1.000        1.000  100.0%       0",
    ]


@given(traces())
def test_shares_make_a_whole_and_every_span_is_counted(spans: list[SpanRecord]) -> None:
    groups = summary(forest(spans))
    for group in groups:
        assert sum(row.share for row in group.rows) == pytest.approx(1)
        assert sum(row.own for row in group.rows) == pytest.approx(group.total)
    assert sum(row.count for group in groups for row in group.rows) == len(spans)


def test_no_time_at_all_has_no_shares() -> None:
    ((row,),) = [group.rows for group in summary(forest([span(1, "a", 5, 5)]))]
    assert (row.count, row.own, row.share) == (1, 0, 0)


def test_names_cannot_forge_lines() -> None:
    assert "\n  a\\nb " in render_summary(summary(forest([span(1, "a\nb", 0, 1)])))


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (99, 99), (1, 1), (100, 100)])
def test_percentiles_are_of_the_nearest_rank(percent: int, value: int) -> None:
    assert percentile(list(range(1, 101)), percent) == value
    assert percentile([7], percent) == 7
