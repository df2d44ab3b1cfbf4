"""The scheduler's behaviours under each policy, with requests among which none of them prefers another than the first.

Where the order does matter, each policy has tests of its own.
"""

from __future__ import annotations

import pytest

from enginebay.errors import RequestTooLong
from enginebay.interfaces import BatchConstraints
from enginebay.messages import EngineRequest
from enginebay.scheduling import check_fits
from enginebay.testing import make_limits, make_request
from support.loop import scheduled
from support.policies import EVERY, policy_loop

pytestmark = pytest.mark.parametrize("name", EVERY)
PLACES = BatchConstraints()


def alike(count: int, prompt: int = 8, *, first: int = 0, max_tokens: int = 4) -> list[EngineRequest]:
    """Requests that differ in their arrival alone."""
    return [make_request(first + number, prompt, max_tokens=max_tokens) for number in range(count)]


def test_ten_are_ten_and_an_abort_takes_one_out_at_once(name: str) -> None:  # S1
    loop = policy_loop(name, limits=make_limits(max_num_seqs=4))
    loop.add(*alike(10))
    assert loop.scheduler.make_stats().num_waiting == 10
    loop.abort("r9")
    assert loop.scheduler.make_stats().num_waiting == 9
    loop.step()
    held = loop.cache.num_blocks - loop.cache.num_free_blocks
    assert held == 4 * 2
    loop.abort("r2")
    assert loop.cache.num_blocks - loop.cache.num_free_blocks == 3 * 2
    assert loop.step().finished == ("r2",)
    loop.run()


def test_max_num_seqs_caps_admission_in_order(name: str) -> None:  # S2
    loop = policy_loop(name, limits=make_limits(max_num_seqs=3, max_num_batched_tokens=1000))
    loop.add(*alike(10))
    assert list(scheduled(loop.step())) == ["r0", "r1", "r2"]
    assert loop.scheduler.make_stats().num_waiting == 7
    loop.run()
    assert list(loop.finished) == [f"r{number}" for number in range(10)]


def test_whole_prompts_that_fit_run_whole_and_in_order(name: str) -> None:  # S3
    loop = policy_loop(name)
    loop.add(*alike(4))
    assert list(scheduled(loop.step()).items()) == [("r0", 8), ("r1", 8), ("r2", 8), ("r3", 8)]
    assert list(scheduled(loop.step()).items()) == [("r0", 1), ("r1", 1), ("r2", 1), ("r3", 1)]


def test_the_last_prompt_is_chunked_and_decode_tokens_go_first(name: str) -> None:  # S4
    loop = policy_loop(name, limits=make_limits(max_num_batched_tokens=11))
    loop.add(*alike(2))
    assert scheduled(loop.step()) == {"r0": 8, "r1": 3}
    assert list(scheduled(loop.step()).items()) == [("r0", 1), ("r1", 5)]
    loop.run()


def test_without_chunks_a_head_that_does_not_fit_waits_and_nobody_overtakes(name: str) -> None:  # S5
    loop = policy_loop(name, limits=make_limits(max_num_batched_tokens=17, chunked_prefill=False))
    loop.add(*alike(4))
    assert scheduled(loop.step()) == {"r0": 8, "r1": 8}
    assert scheduled(loop.step()) == {"r0": 1, "r1": 1, "r2": 8}
    assert scheduled(loop.step()) == {"r0": 1, "r1": 1, "r2": 1, "r3": 8}
    loop.run()


def test_the_cap_on_long_prompts_counts_only_while_others_wait(name: str) -> None:  # S6
    limits = make_limits(max_num_seqs=2, max_num_batched_tokens=20, long_prefill_token_threshold=6)
    loop = policy_loop(name, limits=limits)
    loop.add(*alike(1, 40, max_tokens=1))
    assert scheduled(loop.step()) == {"r0": 20}
    loop.add(*alike(2, 40, first=1, max_tokens=1))
    assert scheduled(loop.step()) == {"r0": 6, "r1": 6}  # r2 waits
    loop.abort("r2")
    assert scheduled(loop.step()) == {"r0": 14, "r1": 6}
    loop.run()


def test_the_last_gives_way_and_comes_back_before_those_who_wait(name: str) -> None:  # S9
    loop = policy_loop(name, num_blocks=6)
    loop.add(*alike(3, 7))
    loop.step()
    loop.add(*alike(1, 7, first=3))
    loop.step()  # all three at 8 tokens, all blocks taken
    output = loop.step()
    assert output.preempted == ("r2",)
    assert scheduled(output) == {"r0": 1, "r1": 1}
    while not output.resumed:
        assert not output.new, "r3 overtook the preempted r2"
        output = loop.step()
    (resumed,) = output.resumed
    assert (resumed.request_id, len(resumed.token_ids)) == ("r2", 9)  # its prompt and the two tokens it had put out
    loop.run()  # checks that every request put out the same tokens as undisturbed


def test_what_a_victim_had_in_the_step_is_given_to_others(name: str) -> None:  # S10
    loop = policy_loop(name, num_blocks=8, limits=make_limits(max_num_batched_tokens=40))
    loop.add(*alike(4, 8, max_tokens=9))
    loop.step()
    output = loop.step()
    assert output.preempted == ("r3", "r2")
    assert list(scheduled(output)) == ["r0", "r1"], "somebody who stayed was passed over"
    loop.run()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_those_that_cannot_fit_together_come_to_an_end(name: str, depth: int) -> None:  # S11
    for budget in (3, 1000):
        limits = make_limits(max_num_batched_tokens=budget)
        loop = policy_loop(name, num_blocks=8, limits=limits, depth=depth)
        loop.add(*alike(3, 16, max_tokens=16))
        loop.run(max_steps=800)
        assert loop.preemptions <= 40


def test_what_can_never_fit_is_refused_and_the_longest_that_can_ends(name: str) -> None:  # S11
    limits = make_limits(max_num_batched_tokens=8)
    loop = policy_loop(name, num_blocks=10, limits=limits)
    with pytest.raises(RequestTooLong, match="needs 11 KV blocks of 4 tokens, and the cache has 10"):
        check_fits(30, 12, limits, loop.cache, PLACES)
    check_fits(30, 11, limits, loop.cache, PLACES)
    loop.add(*alike(2, 30, max_tokens=11))
    loop.run()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_token_is_computed_beyond_the_last(name: str, depth: int) -> None:  # S13
    loop = policy_loop(name, depth=depth)
    loop.add(*alike(5, 8, max_tokens=7))
    computed, steps = 0, 0
    while loop.unfinished:
        output = loop.step()
        computed += output.total_num_scheduled_tokens
        steps += bool(output.num_scheduled_tokens)
    assert (computed, steps) == (5 * (8 + 7 - 1), 7)
    loop.run()


@pytest.mark.parametrize("depth", [2, 3])
def test_aborts_and_preemptions_with_tokens_in_flight_lose_nothing(name: str, depth: int) -> None:  # S13, S14
    """The loop itself asserts that no block is handed out while a step that may write to it is in flight."""
    loop = policy_loop(name, num_blocks=10, depth=depth)
    loop.add(*alike(8, 7, max_tokens=12))
    for victim in ("r1", "r4", "r0"):
        for _ in range(3):
            loop.step()
        loop.abort(victim)
    loop.run()
    assert loop.preemptions
    assert sorted(r for r, reason in loop.finished.items() if reason == "abort") == ["r0", "r1", "r4"]


def test_blocks_of_who_ended_wait_for_the_step_in_flight(name: str) -> None:  # S14
    loop = policy_loop(name, num_blocks=2, depth=2)
    loop.add(*alike(1, 7, max_tokens=2))
    loop.step()  # in flight
    loop.abort("r0")
    assert loop.cache.num_free_blocks == 0
    loop.add(*alike(1, 7, first=1, max_tokens=2))
    output = loop.step()  # r1 must wait; the step in flight comes to its end
    assert (output.finished, scheduled(output)) == (("r0",), {})
    assert loop.cache.num_free_blocks == 2
    assert scheduled(loop.step()) == {"r1": 7}
    loop.run()
