"""Live requests: their two tables, and the short way of a row that goes on by one token beside the long way of any."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.engine.live import Live, Lives
from enginebay.engine.requests import Requests
from enginebay.messages import RequestOutput, RequestSummary
from enginebay.worker import ScheduledRow
from support.fake_engine import EOS, FEATURES, VOCAB, FakeEngine

TOKENS = st.sampled_from([*b"aaaaaabbbX", EOS, VOCAB, -1])
PARAMS = st.fixed_dictionaries(
    {
        "max_tokens": st.sampled_from([1, 3, 9, 9]),
        "min_tokens": st.integers(0, 1),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.sampled_from([(), (), (98,), (98, EOS)]),
        "stop": st.sampled_from([(), (), (), ("aX",), ("b", "X")]),
        "logprobs": st.sampled_from([None, None, None, 0]),
        "n": st.sampled_from([1, 1, 1, 2]),
        "temperature": st.just(1.0),
    }
)


def requests(least: int, most: int) -> st.SearchStrategy[list[tuple[dict[str, Any], list[list[int]]]]]:
    """What is asked, and what is drawn in each step of a request, over and over: so many tokens at a time."""
    answer = st.lists(st.lists(TOKENS, min_size=least, max_size=most), min_size=1, max_size=9)
    return st.lists(st.tuples(PARAMS, answer), min_size=1, max_size=4)


def told(asked: Sequence[tuple[dict[str, Any], list[list[int]]]], depth: int) -> tuple[list[Any], dict[str, Any]]:
    """All that is put out for these requests, step by step, and what observers are told of their ends."""

    def draw(one: ScheduledRow) -> tuple[int, ...]:
        answer = asked[int(one.row.request_id.partition("#")[0])][1]
        return tuple(answer[(len(one.row.token_ids) - one.row.num_prompt_tokens) % len(answer)])

    engine = FakeEngine(draw=draw, depth=depth, max_tokens_per_step=2, features=FEATURES, max_model_len=12)
    for number, (params, _) in enumerate(asked):
        engine.add(str(number), **params)
    steps: list[list[RequestOutput]] = []
    for _ in range(20):  # one that is never drawn a token goes on for ever
        steps.append(engine.step())
    engine.core.abort([str(number) for number in range(len(asked))])
    steps.append(engine.step())
    return steps, {one.request_id: _untimed(one) for one in engine.hooks.summaries}


def _untimed(summary: RequestSummary) -> tuple[Any, ...]:
    began = summary.first_token is not None
    return summary.finish_reason, summary.usage, began, summary.first_step, summary.last_step, summary.error


def both(asked: list[tuple[dict[str, Any], list[list[int]]]], depth: int) -> None:
    short = told(asked, depth)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("enginebay.engine.live._asks_for_tokens_alone", lambda row: False)
        assert told(asked, depth) == short


@settings(max_examples=100)
@given(asked=requests(0, 2))
def test_the_short_way_comes_to_the_same(asked: list[tuple[dict[str, Any], list[list[int]]]]) -> None:
    both(asked, depth=1)


@settings(max_examples=100)
@given(asked=requests(1, 1))
def test_the_short_way_comes_to_the_same_with_steps_in_flight(
    asked: list[tuple[dict[str, Any], list[list[int]]]],
) -> None:
    both(asked, depth=2)


def test_a_plain_row_goes_the_short_way_between_its_first_token_and_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets: list[int] = []

    def settle_row(self: Requests, live: Live, offset: int, *others: Any) -> None:
        offsets.append(offset)
        original(self, live, offset, *others)

    original = Requests._settle_row
    monkeypatch.setattr(Requests, "_settle_row", settle_row)
    FakeEngine().answer(max_tokens=5)
    assert offsets == [0, 4]


@given(steps=st.lists(st.tuples(st.sampled_from(["add", "begin", "pop"]), st.integers(0, 3)), max_size=40))
def test_a_live_request_is_in_one_table(steps: list[tuple[str, int]]) -> None:
    lives, waiting, begun = Lives(), set[str](), set[str]()
    for step, number in steps:
        request_id = str(number)
        if step == "add" and request_id not in waiting | begun:
            row: Any = SimpleNamespace(request_id=request_id)
            live = Live.__new__(Live)
            live.row = row
            lives.add(live)
            waiting.add(request_id)
        elif step == "begin":
            assert (lives.begin(request_id) is not None) == (request_id in waiting)
            begun |= waiting & {request_id}
            waiting.discard(request_id)
        elif step == "pop" and request_id in waiting | begun:
            assert lives.pop(request_id).row.request_id == request_id
            waiting.discard(request_id)
            begun.discard(request_id)
        assert set(lives.begun) == begun
        assert sorted(live.row.request_id for live in lives) == sorted(waiting | begun)
        assert [one for one in "0123" if lives.get(one)] == sorted(waiting | begun)


def test_what_waits_is_in_no_table_that_a_step_looks_in() -> None:
    engine = FakeEngine(max_num_seqs=2)
    for number in range(6):
        engine.add(str(number), max_tokens=3)
    engine.step()
    assert list(engine.core._requests._live.begun) == ["0", "1"]
    engine.run()
    assert not list(engine.core._requests._live)
