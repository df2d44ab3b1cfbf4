"""A request that goes on in another group: its trace and its summary tell steps by number and group."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from enginebay import tracing
from support.moving import Hand
from support.spans import Spans, recorded


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def step_of(spans: Spans, group: int, index: int) -> ReadableSpan:
    """The step of that number in that group."""
    (found,) = [
        span
        for span in spans.named("engine.step")
        if (about(span)[tracing.GROUP], about(span)[tracing.STEP_INDEX]) == (group, index)
    ]
    return found


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def spans_of(spans: Spans) -> dict[str, ReadableSpan]:
    return {about(span)[tracing.REQUEST_ID]: span for span in spans.named("text_completion fake-model")}


def moved(begun: int, before: int) -> Hand:
    """Group 1 has had ``before`` steps of its own when "a", of which group 0 has had ``begun``, comes to it."""
    two = Hand(step_every=1)
    two.ask("a", "say:a long answer", 20)
    two.ask("other", "say:" + "x" * 30, 40)
    for _ in range(begun):
        two.turn(0)
    for _ in range(before):
        two.turn(1)
    two.doomed.add(0)
    two.turn(0)
    assert two.group_of("a") == 1
    two.run()
    two.check()
    return two


@pytest.mark.parametrize("before", [0, 3])
def test_its_steps_are_told_with_their_group(monkeypatch: pytest.MonkeyPatch, before: int) -> None:  # O3
    with recorded(monkeypatch) as spans:
        two = moved(begun=2, before=before)
        (summary,) = [one for one in two.engines[1].hooks.summaries if one.request_id == "a"]
        assert (summary.first_step, summary.first_step_group) == (0, 0)
        assert summary.last_step_group == 1
        request = spans_of(spans)["a"]
        first, last = step_of(spans, 0, 0), step_of(spans, 1, summary.last_step or 0)
        reports = [one for one in two.engines[1].hooks.steps if one.step == summary.last_step]
        assert [one.group for one in reports] == [1]
        two.close()
    assert first.context is not None
    assert last.context is not None
    assert request.context is not None
    told = {name: value for name, value in about(request).items() if "_step" in name}
    assert told == {
        tracing.FIRST_STEP: 0,
        tracing.FIRST_STEP_GROUP: 0,
        tracing.FIRST_STEP_TRACE: f"{first.context.trace_id:032x}",
        tracing.LAST_STEP: summary.last_step,
        tracing.LAST_STEP_GROUP: 1,
        tracing.LAST_STEP_TRACE: f"{last.context.trace_id:032x}",
    }
    assert {first.context.span_id, last.context.span_id} <= set(linked(request))
    joined = [span for span in spans.named("engine.step") if request.context.span_id in linked(span)]
    assert joined == [first, last], "the step of group 1 with the number of its first is nothing to it"
    (event,) = [one for one in request.events if one.name == "moved"]
    assert dict(event.attributes or {})[tracing.GROUP] == 1


def test_a_last_step_with_the_number_of_the_first_is_linked(monkeypatch: pytest.MonkeyPatch) -> None:  # O3
    """Of another group it is another step, and it is where the request ends."""
    with recorded(monkeypatch) as spans:
        two = Hand(step_every=1)
        two.ask("other", "say:xx", 9)
        two.turn(0)
        two.turn(0)
        two.ask("pad", "say:" + "x" * 30, 40)  # so that the next one comes to group 0
        two.ask("a", "say:abcd", 4)
        assert two.group_of("a") == 0
        while "a" not in two.engines[0].core._requests._live.begun:
            two.turn(0)
        first = two.engines[0].core._requests._live["a"].timeline.first_step
        while two.engines[1].core.stats().steps < (first or 0) - 2:
            two.turn(1)
        two.doomed.add(0)
        two.run()
        two.check()
        (summary,) = [one for one in two.engines[1].hooks.summaries if one.request_id == "a"]
        request = spans_of(spans)["a"]
        last = step_of(spans, 1, summary.last_step or 0)
        two.close()
    assert (summary.first_step, summary.last_step) == (first, first)
    assert (summary.first_step_group, summary.last_step_group) == (0, 1)
    assert request.context is not None
    assert request.context.span_id in linked(last)


def test_one_that_ends_before_it_runs_there_has_its_last_step_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded(monkeypatch) as spans:
        two = Hand(step_every=1)
        two.ask("a", "say:a long answer", 20)
        two.turn(0)
        two.turn(0)
        two.doomed.add(0)
        two.turn(0)
        assert two.group_of("a") == 1
        two.set.abort("a")
        two.run()
        two.check("a")
        (summary,) = two.engines[1].hooks.summaries
        got = about(spans_of(spans)["a"])
        two.close()
    assert (summary.last_step, summary.last_step_group) == (2, 0), "the one that is void"
    assert (got[tracing.LAST_STEP], got[tracing.LAST_STEP_GROUP]) == (2, 0)
