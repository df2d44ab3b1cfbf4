"""The live requests: nothing is left of one that could not be opened, and nothing is kept of those that ended."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.engine.deadlines import Deadlines
from enginebay.engine.requests import Requests
from enginebay.engine.spans import TEXT_COMPLETION, RequestSpans, WallTime
from enginebay.errors import EngineDead
from enginebay.messages import EngineRequest, FinishReason, RequestSummary, SamplingParams
from support.clock import FakeClock
from support.fake_engine import FEATURES, Bytes, FakeEngine


class Fails(Exception):
    """What a test lets fail."""


def request(number: int, deadline: float | None = None) -> EngineRequest:
    return EngineRequest(
        request_id=f"r{number}",
        prompt_token_ids=(1, 2),
        params=SamplingParams(),
        seed=0,
        arrival=float(number),
        arrival_number=number,
        deadline=deadline,
    )


class Held:
    """Requests whose parts can be made to fail."""

    def __init__(self) -> None:
        self.summaries: list[RequestSummary] = []
        self.spans = RequestSpans(model="m", wall=WallTime(FakeClock()))
        self.detokenizer: Any = Bytes
        self.requests = Requests(
            spans=self.spans,
            detokenizer=lambda skip: self.detokenizer(skip),
            eos_token_ids=frozenset(),
            max_model_len=lambda: 100,
            on_finished=self.summaries.append,
        )

    def open(self, number: int, deadline: float | None = None) -> None:
        self.requests.open(request(number, deadline), operation=TEXT_COMPLETION, now_ns=0)

    def maps(self) -> dict[str, int]:
        kinds = (dict, list, Deadlines)
        return {name: len(value) for name, value in vars(self.requests).items() if isinstance(value, kinds)}


def fails(*arguments: Any) -> Any:
    raise Fails


@pytest.mark.parametrize("part", ["spans", "detokenizer"])
def test_a_request_that_cannot_be_opened_leaves_nothing(part: str) -> None:
    held = Held()
    if part == "spans":
        held.spans.open = fails  # type: ignore[method-assign,assignment]  # a tracer that errs
    else:
        held.detokenizer = fails
    with pytest.raises(Fails):
        held.open(1, deadline=5.0)
    assert len(held.requests) == 0
    assert set(held.maps().values()) == {0}
    assert held.requests.expired(10.0) == []


def test_deadlines_of_requests_that_ended_are_not_kept() -> None:
    held = Held()
    held.open(0, deadline=99.0)
    for number in range(1, 10_000):
        held.open(number, deadline=1e9)
        row = held.requests.ledger.get(f"r{number}")
        assert row is not None
        held.requests.end(row, FinishReason.ABORT, 0)
        held.requests.take_outputs()
        assert held.maps()["_deadlines"] <= 2 * 1 + 65
    assert [row.request_id for row in held.requests.expired(100.0)] == ["r0"]


def test_many_live_deadlines_expire_in_their_order() -> None:
    held = Held()
    for number in range(300):
        held.open(number, deadline=float(1000 - number))
    for number in range(0, 300, 3):
        row = held.requests.ledger.get(f"r{number}")
        assert row is not None
        held.requests.end(row, FinishReason.ABORT, 0)
    expired = [row.arrival_number for row in held.requests.expired(2000.0)]
    assert expired == [number for number in reversed(range(300)) if number % 3]


def test_one_row_whose_end_fails_keeps_no_other_from_its_own(caplog: pytest.LogCaptureFixture) -> None:
    held = Held()
    for number in range(3):
        if number == 1:
            held.detokenizer = lambda skip: type("Bad", (Bytes,), {"finish": fails})()
        held.open(number)
        held.detokenizer = Bytes
    with caplog.at_level("WARNING"):
        held.requests.end_all(FinishReason.ERROR, 0, error="the cause")
    assert [summary.request_id for summary in held.summaries] == ["r0", "r2"]
    assert [record.getMessage() for record in caplog.records] == ["ending request 'r1' failed: Fails"]


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3)])
def test_an_executor_whose_stop_raises_ends_with_the_rest(
    error: BaseException, dies: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngine()
    engine.add("a", max_tokens=9)
    engine.step()

    def stop(deadline: float) -> None:
        raise error

    engine.executor.stop = stop  # type: ignore[method-assign]  # an executor that errs
    with caplog.at_level("WARNING"):
        if dies:
            engine.executor.submit = fails  # type: ignore[method-assign,assignment]  # see above
            with pytest.raises(EngineDead, match=r"did not take execute_model of step 1: Fails$"):
                engine.step()
        engine.core.stop()
    assert engine.hooks.stopped == 1
    assert [summary.request_id for summary in engine.hooks.summaries] == ["a"]
    assert f"stopping the workers failed: {type(error).__name__}: {error}" in caplog.messages


def test_a_row_whose_end_fails_keeps_no_worker_from_its_own() -> None:
    engine = FakeEngine(detokenizer=lambda skip: type("Bad", (Bytes,), {"finish": fails})())
    engine.add("a", max_tokens=9)
    engine.core.stop()
    assert (engine.executor.stopped, engine.hooks.stopped) == (1, 1)


@pytest.mark.parametrize(("min_tokens", "text"), [(2, "\ufffd"), (1, ""), (0, "")])
def test_a_stop_string_that_an_abort_completes_counts_from_min_tokens_on(min_tokens: int, text: str) -> None:  # S8
    engine = FakeEngine(features=FEATURES)
    engine.add("a", "say:é", min_tokens=min_tokens, stop=("\ufffd",))
    engine.step()  # half a character, which the end makes U+FFFD
    engine.core.abort(["a"])
    engine.run()
    assert (engine.tokens["a"], engine.texts["a"]) == ([0xC3], text)
    assert engine.last["a"].finish_reason is FinishReason.ABORT
