"""Step and request spans: what is recorded, when, and how the two are tied."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from enginebay import tracing
from enginebay.errors import EngineDead
from enginebay.messages import SchedulerOutput
from support.fake_engine import FEATURES, FakeEngine
from support.spans import recorded

TRACEPARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_one_trace_per_request_with_its_phases_and_events(monkeypatch: pytest.MonkeyPatch) -> None:  # O2
    with recorded(monkeypatch) as spans:
        engine = FakeEngine(step_every=1)
        engine.add("a", "say:hello", temperature=0.5, top_k=3, seed=9, ask={"traceparent": TRACEPARENT})
        engine.run()
        (span,) = spans.named("text_completion fake-model")
        assert spans.children(span) == ["queue", "prefill", "decode"]
    assert span.kind is SpanKind.SERVER
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == TRACEPARENT[3:52]
    assert span.status.status_code is StatusCode.OK
    assert [event.name for event in span.events] == ["scheduled", "first_token", "finished"]
    assert span.start_time is not None
    times = [event.timestamp for event in span.events]
    assert [span.start_time, *times] == sorted([span.start_time, *times])
    got = about(span)
    assert len(got.pop(tracing.FIRST_STEP_TRACE)) == len(got.pop(tracing.LAST_STEP_TRACE)) == 32
    assert got == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "enginebay",
        "gen_ai.request.model": "fake-model",
        "gen_ai.request.max_tokens": 256,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_k": 3,
        "gen_ai.request.seed": 9,
        "gen_ai.response.model": "fake-model",
        "gen_ai.response.id": "a",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "enginebay.request.id": "a",
        "enginebay.request.finish_reason": "stop",
        "enginebay.request.preemptions": 0,
        "enginebay.request.recoveries": 0,
        "enginebay.request.first_step": 0,
        "enginebay.request.first_step.group": 0,
        "enginebay.request.last_step": 5,
        "enginebay.request.last_step.group": 0,
    }


def test_each_choice_has_a_span_and_the_prompt_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:  # O2
    with recorded(monkeypatch) as spans:
        engine = FakeEngine(features=FEATURES)
        engine.add("a", "say:%", n=2, temperature=1.0, presence_penalty=0.5, frequency_penalty=-1)
        engine.add("b", "say:one")
        engine.run()
        told = {about(span)[tracing.REQUEST_ID]: about(span) for span in spans.named("text_completion fake-model")}
    assert list(told) == ["a#0", "a#1", "b"]
    names = ("choice.count", "presence_penalty", "frequency_penalty")
    assert [told["a#1"][f"gen_ai.request.{name}"] for name in names] == [2, 0.5, -1.0]
    assert not [name for name in told["b"] if name.removeprefix("gen_ai.request.") in names]
    assert [told[name]["gen_ai.usage.input_tokens"] for name in told] == [5, 0, 7]


def test_a_void_is_told_in_the_spans_of_its_step_and_requests(monkeypatch: pytest.MonkeyPatch) -> None:  # O2
    with recorded(monkeypatch) as spans:
        engine = FakeEngine(step_every=10**9)
        engine.add("a", max_tokens=3)
        engine.step()
        engine.executor.reply_generation = 77
        engine.step()
        engine.executor.reply_generation = None
        engine.run()
        (request,) = spans.named("text_completion fake-model")
        (_, step) = spans.named("engine.step")
    assert about(step)[tracing.STEP_INDEX] == 1
    assert (step.status.status_code, about(step)["error.type"]) == (StatusCode.ERROR, "StepVoid")
    assert (request.status.status_code, about(request)[tracing.RECOVERIES]) == (StatusCode.OK, 1)
    assert [event.name for event in request.events] == ["scheduled", "first_token", "requeued", "finished"]


def test_a_failed_request_has_its_error(monkeypatch: pytest.MonkeyPatch) -> None:  # O2
    with recorded(monkeypatch) as spans:
        engine = FakeEngine()
        engine.executor.faults["a"] = "logits are NaN"
        engine.add("a")
        engine.run()
        (request,) = spans.named("text_completion fake-model")
    assert about(request)["enginebay.request.error"] == "logits are NaN"


def test_steps_and_requests_are_tied_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:  # O3
    with recorded(monkeypatch) as spans:
        engine = FakeEngine(step_every=1)
        engine.add("a", max_tokens=3)
        engine.add("b", max_tokens=2)
        engine.run()
        steps = spans.named("engine.step")
        requests = {about(s)[tracing.REQUEST_ID]: s for s in spans.named("text_completion fake-model")}
    ids = {request_id: span.context.span_id for request_id, span in requests.items() if span.context is not None}
    assert [sorted(link.context.span_id for link in step.links) for step in steps] == [
        sorted(ids.values()),
        [ids["b"]],
        [ids["a"]],
        [],
    ]
    assert all(step.parent is None for step in steps)
    first, last = steps[0].context, steps[2].context
    assert first is not None
    assert last is not None
    assert [link.context.trace_id for link in requests["a"].links] == [first.trace_id, last.trace_id]
    got = about(requests["a"])
    assert got[tracing.FIRST_STEP_TRACE] == f"{first.trace_id:032x}"
    assert got[tracing.LAST_STEP_TRACE] == f"{last.trace_id:032x}"


def test_a_recorded_step_has_its_phases_and_workers_get_its_context(monkeypatch: pytest.MonkeyPatch) -> None:  # O3
    with recorded(monkeypatch) as spans:
        engine = FakeEngine(step_every=2)
        told: list[str] = []
        submit = engine.executor.submit
        engine.executor.submit = lambda envelope: (told.append(envelope.traceparent), submit(envelope))[1]  # type: ignore[method-assign]  # a look at what travels
        engine.answer(max_tokens=4)
        steps = spans.named("engine.step")
        assert [about(step)[tracing.STEP_INDEX] for step in steps] == [0, 2, 4]
        assert spans.children(steps[0]) == ["schedule", "execute_model", "sample", "update"]
        execute = spans.named("execute_model")[0]
    assert execute.context is not None
    assert [bool(one) for one in told] == [True, False, True, False, True]
    assert told[0].startswith(f"00-{execute.context.trace_id:032x}-{execute.context.span_id:016x}-")
    got = about(steps[0])
    assert (got[tracing.BATCH_SIZE], got[tracing.TOKENS_SCHEDULED], got[tracing.TOKENS_COMMITTED]) == (1, 2, 1)
    assert not any(key.startswith("gen_ai.") for key in got)


def test_a_step_that_stands_out_is_built_from_its_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded(monkeypatch) as spans:
        engine = FakeEngine(step_every=10**9)
        engine.add("a", max_tokens=100)
        for _ in range(40):
            engine.step()
        import time

        engine.executor.before = lambda output: time.sleep(0.3)
        engine.step()
        steps = spans.named("engine.step")
        assert spans.children(steps[-1]) == ["schedule", "execute_model", "sample", "update"]
    assert about(steps[-1])[tracing.STEP_INDEX] == 40
    assert steps[-1].end_time is not None
    assert steps[-1].start_time is not None
    assert steps[-1].end_time - steps[-1].start_time >= 0.3e9


def test_of_steps_that_are_void_together_the_first_tells_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:  # O2
    with recorded(monkeypatch) as spans:
        engine = FakeEngine(step_every=10**9, depth=2)
        engine.add("a", max_tokens=9)
        engine.step()

        def fail_once(output: SchedulerOutput) -> None:
            engine.executor.before = lambda output: None
            raise ValueError("boom")

        engine.executor.before = fail_once
        engine.run()
        failed = [step for step in spans.named("engine.step") if step.status.status_code is StatusCode.ERROR]
        (request,) = spans.named("text_completion fake-model")
    assert [about(step)["error.type"] for step in failed] == ["worker_failed", "StepVoid"]
    assert "boom" in (failed[0].status.description or "")
    assert request.status.status_code is StatusCode.OK
    assert [event.name for event in request.events].count("requeued") == 1


def test_a_failed_step_is_recorded_and_so_are_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:  # O2
    with recorded(monkeypatch) as spans:
        engine = FakeEngine(step_every=10**9, max_failed_steps=1)
        engine.add("a", max_tokens=9)
        engine.step()
        engine.executor.before = lambda output: exec("raise ValueError('boom')")
        with pytest.raises(EngineDead):
            engine.step()
        step = spans.named("engine.step")[-1]
        (request,) = spans.named("text_completion fake-model")
    assert step.status.status_code is StatusCode.ERROR
    assert about(step)["error.type"] == "worker_failed"
    assert request.status.status_code is StatusCode.ERROR
    assert about(request)["error.type"] == "request_failed"
    assert about(request)[tracing.FINISH_REASON] == "error"


def test_an_aborted_request_says_so(monkeypatch: pytest.MonkeyPatch) -> None:  # O2
    with recorded(monkeypatch) as spans:
        engine = FakeEngine()
        engine.add("a")
        engine.core.abort(["a"])
        engine.step()
        (request,) = spans.named("text_completion fake-model")
        assert spans.children(request) == ["queue"]
    assert request.status.status_code is StatusCode.ERROR
    assert about(request)["error.type"] == "aborted"
    assert about(request)[tracing.FINISH_REASON] == "abort"


def test_preemptions_are_events_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded(monkeypatch) as spans:
        engine = FakeEngine(num_blocks=12)
        for index in range(6):
            engine.add(f"r{index}", "x" * 10, max_tokens=20)
        engine.run()
        requests = spans.named("text_completion fake-model")
    counted = sum(about(request)[tracing.PREEMPTIONS] for request in requests)
    events = sum(event.name == "preempted" for request in requests for event in request.events)
    assert counted == events == engine.core.stats().scheduler.preemptions > 0
