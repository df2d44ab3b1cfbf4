"""A void drops every step in flight: nothing of it is kept, and a fresh scheduler is filled from the ledger."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.errors import PolicyFailed
from enginebay.interfaces import RequestView
from enginebay.messages import FinishReason, SchedulerOutput
from support.fake_engine import Arrival, FakeEngine
from support.mortal import PROMPTS


def engine_of(depth: int, void: set[int], seen: list[SchedulerOutput] | None = None) -> FakeEngine:
    """Three requests in chunks of 8; the answers to the steps of these numbers come too late."""
    engine = FakeEngine(max_num_batched_tokens=8, depth=depth)

    def before(output: SchedulerOutput) -> None:
        engine.executor.reply_generation = 77 if output.step in void else None
        if seen is not None:
            seen.append(output)

    engine.executor.before = before
    for request_id, prompt in PROMPTS.items():
        engine.add(request_id, prompt, max_tokens=9)
    return engine


def undisturbed() -> dict[str, list[int]]:
    engine = engine_of(1, set())
    engine.run()
    return engine.tokens


EXPECTED = undisturbed()


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("void", range(20))
def test_one_void_changes_no_token_and_leaves_nothing(depth: int, void: int) -> None:
    seen: list[SchedulerOutput] = []
    engine = engine_of(depth, {void}, seen)
    engine.run()
    assert engine.tokens == EXPECTED
    assert engine.kv.num_free_blocks == 64
    assert engine.core.stats().committed_tokens == sum(map(len, EXPECTED.values()))
    generations = [output.generation for output in seen]
    assert generations == sorted(generations)
    late = [output for output in seen if output.generation == 1]
    if late:  # else the engine was done before the step of that number
        first = late[0]
        assert first.step > void
        assert (first.running, first.resumed, first.preempted) == ((), (), ())
        assert first.new[0].num_computed_tokens == 0, "found in a cache what a void step computed"
        assert engine.core.stats().dropped_replies == 1


@given(void=st.sets(st.integers(0, 40), max_size=12), depth=st.integers(1, 3))
def test_any_number_of_voids(void: set[int], depth: int) -> None:
    engine = engine_of(depth, void)
    engine.run()
    assert engine.tokens == EXPECTED
    assert engine.kv.num_free_blocks == 64
    assert all(last.finish_reason is not FinishReason.ERROR for last in engine.last.values())


def test_the_cache_of_a_voided_first_chunk_is_empty() -> None:
    engine = engine_of(1, {0})
    before = engine.kv
    engine.step()
    assert engine.kv is not before
    assert engine.kv.num_free_blocks == 64
    fresh = FakeEngine()
    fresh.add("x", PROMPTS["a"])
    fresh.step()
    (new,) = fresh.executor.steps[0].new
    view = next(iter(engine.core._requests.ledger)).request()
    assert view.prompt_token_ids == new.token_ids
    assert engine.kv.cached_prefix_tokens(view) == 0


def test_requests_come_back_in_order_of_arrival_and_say_how_often() -> None:
    engine = engine_of(2, {3})
    while not engine.core.stats().dropped_replies:
        engine.step()
    requests = [row.request() for row in engine.core._requests.ledger]
    assert [request.request_id for request in requests] == ["a", "b", "c"]
    assert [len(request.committed_token_ids) for request in requests] == [
        len(engine.tokens.get(request_id, ())) for request_id in "abc"
    ]
    assert {row.recoveries for row in engine.core._requests.ledger} == {1}
    engine.run()
    usage = engine.last["a"].usage
    assert usage is not None
    assert usage.completion_tokens == 9
    assert usage.recomputed_tokens > 0


def test_a_request_that_was_aborted_meanwhile_is_not_resurrected() -> None:  # R7
    engine = engine_of(2, {2})
    for _ in range(2):
        engine.step()
    outputs, _ = engine.core.step(lambda: engine.core.abort(["b"]))
    assert engine.core.stats().dropped_replies == 1
    assert [(o.request_id, o.finish_reason) for o in outputs] == [("b", FinishReason.ABORT)]
    engine.run()
    assert {k: engine.tokens[k] for k in "ac"} == {k: EXPECTED[k] for k in "ac"}
    assert "b" not in engine.tokens
    assert engine.kv.num_free_blocks == 64


def test_counters_go_on_over_a_void() -> None:
    engine = FakeEngine(num_blocks=12, max_num_batched_tokens=6)
    late = itertools.count()
    engine.executor.before = lambda output: setattr(
        engine.executor, "reply_generation", 77 if next(late) % 10 == 9 else None
    )
    for index in range(6):
        engine.add(f"r{index}", "say:" + "abcdefghij"[index:] * 2, max_tokens=20)
    last = 0
    while engine.core.has_work():
        engine.step()
        now = engine.core.stats().scheduler
        assert now.preemptions >= last
        last = now.preemptions
    told = sum(last.usage.preemptions for last in engine.last.values() if last.usage is not None)
    assert last >= told > 0
    assert engine.kv.num_free_blocks == 12


def failing_policy(times: int) -> type[Arrival]:
    class Fails(Arrival):
        left = times

        def key(self, request: RequestView) -> tuple[int, ...]:
            if not Fails.left:
                raise KeyError("mine")
            Fails.left -= 1
            return super().key(request)

    return Fails


def test_a_policy_that_fails_when_it_is_filled_again_is_named() -> None:
    engine = FakeEngine(policy=failing_policy(1))
    engine.add("a")
    engine.executor.reply_generation = 77
    with pytest.raises(PolicyFailed, match=r"key\(\) raised KeyError: 'mine'"):
        engine.step()


def test_a_factory_that_fails_the_second_time_is_named() -> None:
    def no_more() -> Any:
        raise OSError("no more")

    engine = FakeEngine()
    engine.core._scheduler._make = no_more
    engine.add("a")
    engine.executor.reply_generation = 77
    with pytest.raises(PolicyFailed, match=r"scheduler 'fake' 1\.0: its factory raised OSError: no more"):
        engine.step()
