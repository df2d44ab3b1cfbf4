"""Proposals: who gets them, how many, what becomes of those that were wrong."""

from __future__ import annotations

from itertools import pairwise

import pytest

from enginebay.interfaces import BatchConstraints, SchedulerLimits
from enginebay.messages import Committed
from enginebay.testing import CoreLoop, make_limits, make_request
from support.guesses import Guesser
from support.loop import loop_of, scheduled
from support.schedule_watch import watch

FOUR = BatchConstraints(max_tokens_per_step=5)


def guessing(
    guesser: Guesser,
    *,
    constraints: BatchConstraints = FOUR,
    depth: int = 1,
    num_blocks: int = 1000,
    limits: SchedulerLimits | None = None,
) -> CoreLoop:
    loop = loop_of(propose=guesser, constraints=constraints, depth=depth, num_blocks=num_blocks, limits=limits)
    guesser.loop = loop
    watch(loop)
    return loop


def drafts(loop: CoreLoop) -> dict[str, int]:
    """The proposals of the next step, per request."""
    return {row.request_id: len(row.draft_token_ids) for row in loop.step().running}


def test_right_proposals_save_steps_and_change_nothing() -> None:
    loop = guessing(Guesser(length=9))
    loop.add(make_request(0, 8, max_tokens=11))
    assert scheduled(loop.step()) == {"r0": 8}
    assert [scheduled(loop.step()) for _ in range(3)] == [{"r0": 5}, {"r0": 5}, {}]
    loop.run()  # checks the tokens against those of an undisturbed run
    assert (loop.num_proposed, loop.num_accepted) == (8, 8)


def test_what_was_rejected_is_computed_again_from_where_the_request_stands() -> None:
    loop = guessing(Guesser(right=0.0))
    loop.add(make_request(0, 8, max_tokens=12))
    starts = []
    while "r0" not in loop.finished:
        starts += [row.num_computed_tokens for row in loop.step().running]
    steps = [later - before for before, later in pairwise(starts)]
    assert starts[0] == 8
    assert min(steps) >= 1
    assert loop.num_accepted < loop.num_proposed
    loop.run()


def test_blocks_are_published_as_far_as_tokens_exist() -> None:
    """A rejected proposal fills a block that nobody may find: its content is not of tokens that exist."""
    loop = guessing(Guesser(right=0.0, length=4))
    request = make_request(0, 7, max_tokens=12)
    loop.add(request)
    while "r0" not in loop.finished:
        loop.step()
        known = 7 + len(loop.output["r0"])
        assert loop.cache.num_cached_blocks <= (known - 1) // 4
    loop.run()


def test_the_end_is_not_proposed_past() -> None:  # S13
    for max_tokens in range(2, 9):
        loop = guessing(Guesser(length=9))
        loop.add(make_request(0, 8, max_tokens=max_tokens))
        loop.step()
        most = max_tokens - 2  # one was drawn with the prompt, and each step draws one more than it verifies
        assert drafts(loop) == {"r0": min(4, most)}
        loop.run()


def test_the_runner_says_how_many_may_be_drawn_in_a_step() -> None:
    for most in (1, 2, 3):
        loop = guessing(Guesser(length=9), constraints=BatchConstraints(max_tokens_per_step=most))
        loop.add(make_request(0, 8, max_tokens=12))
        loop.step()
        assert drafts(loop) == {"r0": most - 1}


def test_a_runner_that_verifies_nothing_is_asked_nothing() -> None:
    guesser = Guesser(length=9)
    loop = guessing(guesser, constraints=BatchConstraints())
    loop.add(make_request(0, 8, max_tokens=12))
    loop.run()
    assert (guesser.calls, loop.num_proposed) == (0, 0)


def test_each_running_request_has_its_sure_token_first() -> None:
    loop = guessing(Guesser(length=9), limits=make_limits(max_num_batched_tokens=6))
    loop.add(make_request(0, 2, max_tokens=20), make_request(1, 2, max_tokens=20), make_request(2, 2, max_tokens=20))
    loop.step()
    assert scheduled(loop.step()) == {"r0": 4, "r1": 1, "r2": 1}
    loop.run()


def test_the_context_of_a_batch_bounds_proposals() -> None:
    loop = guessing(Guesser(length=9), constraints=BatchConstraints(max_tokens_per_step=5, max_batch_context_tokens=22))
    loop.add(make_request(0, 8, max_tokens=12), make_request(1, 8, max_tokens=12))
    loop.step()
    assert sum(drafts(loop).values()) <= 22 - 2 * 9
    loop.run()


def test_nobody_gives_way_to_a_guess() -> None:
    loop = guessing(Guesser(length=9), num_blocks=4)
    loop.add(make_request(0, 6, max_tokens=4), make_request(1, 6, max_tokens=4))
    loop.step()
    assert drafts(loop) == {"r0": 1, "r1": 1}  # 7 are known, 2 blocks of 4 have room for 8, and no block is free
    assert loop.preemptions == 0
    loop.run()


def test_without_eviction_proposals_stay_within_what_was_reserved() -> None:
    loop = guessing(Guesser(length=9), num_blocks=10, limits=make_limits(no_evict=True))
    loop.add(*(make_request(number, 8, max_tokens=13) for number in range(5)))
    loop.run()
    assert loop.num_proposed
    assert loop.preemptions == 0


@pytest.mark.parametrize("depth", [2, 3])
def test_a_request_with_proposals_in_flight_stands_still(depth: int) -> None:
    loop = guessing(Guesser(length=4), depth=depth)
    loop.add(make_request(0, 8, max_tokens=30))
    rows = [scheduled(loop.step()).get("r0", 0) for _ in range(6)]
    assert rows[0] == 8
    assert rows[1] == 0  # the first token is on its way, and the guess reaches beyond it
    assert 5 in rows
    loop.run()
    assert loop.num_accepted == loop.num_proposed > 10


def test_a_request_with_nothing_to_propose_does_not_wait() -> None:
    loop = guessing(Guesser(length=0), depth=2)
    loop.add(make_request(0, 8, max_tokens=6))
    assert [scheduled(loop.step()).get("r0", 0) for _ in range(6)] == [8, 1, 1, 1, 1, 1]


def test_a_step_whose_proposals_came_to_nothing_is_made_good() -> None:
    """The core may commit nothing for a request, and not end it: its last token is computed again."""
    guesser = Guesser(length=3)
    loop = guessing(guesser)
    loop.add(make_request(0, 8, max_tokens=9))
    loop.step()
    output = loop.scheduler.schedule()
    assert scheduled(output) == {"r0": 4}
    loop.scheduler.update_from_output(output, Committed())
    again = loop.scheduler.schedule()
    assert [row.num_computed_tokens for row in again.running] == [8]
