"""priority: urgent requests overtake, also those that run; equals keep their order, and nobody is thrashed."""

from __future__ import annotations

import pytest

from enginebay.messages import FinishReason
from enginebay.testing import make_limits, make_request
from support.loop import scheduled
from support.policies import policy_loop


def test_the_most_urgent_start_first_and_equals_in_their_order() -> None:  # S12
    loop = policy_loop("priority", limits=make_limits(max_num_seqs=1))
    loop.add(*(make_request(number, priority=priority) for number, priority in enumerate((0, 5, -2, 0, -2))))
    loop.run()
    assert list(loop.finished) == ["r2", "r4", "r0", "r3", "r1"]
    assert loop.preemptions == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_urgent_request_is_not_stuck_behind_a_full_running_line(depth: int) -> None:  # S12
    loop = policy_loop("priority", limits=make_limits(max_num_seqs=3), depth=depth)
    loop.add(*(make_request(number, priority=number % 2, max_tokens=60) for number in range(3)))
    for _ in range(5):
        loop.step()
    loop.add(make_request(3, priority=-1, max_tokens=2))
    preempted: list[str] = []
    for _ in range(2 + 2 * depth):
        preempted += loop.step().preempted
    assert preempted == ["r1"], "the least urgent gives way, and nobody else"
    assert loop.finished == {"r3": FinishReason.LENGTH}
    loop.run()
    assert loop.preemptions == 1


def test_equals_do_not_take_each_other_s_place() -> None:  # S12
    loop = policy_loop("priority", limits=make_limits(max_num_seqs=2))
    loop.add(*(make_request(number, priority=3, max_tokens=9) for number in range(2)))
    loop.step()
    loop.add(*(make_request(number, priority=number, max_tokens=9) for number in range(3, 7)))
    loop.run()
    assert loop.preemptions == 0
    assert list(loop.finished) == ["r0", "r1", "r3", "r4", "r5", "r6"]


def test_out_of_blocks_the_worst_gives_way_and_the_latest_of_equals() -> None:  # S9
    loop = policy_loop("priority", num_blocks=8)
    for number, priority in enumerate((2, 0, 2, 1)):
        loop.add(make_request(number, 8, priority=priority, max_tokens=9))
    loop.step()
    output = loop.step()
    assert output.preempted == ("r2", "r0")
    assert scheduled(output) == {"r1": 1, "r3": 1}
    loop.run()
    assert list(loop.finished) == ["r1", "r3", "r0", "r2"]


def test_who_asks_gives_way_itself_when_it_is_the_worst() -> None:  # S9
    loop = policy_loop("priority", num_blocks=5)
    loop.add(make_request(0, 7, priority=1, max_tokens=9), make_request(1, 5, priority=0, max_tokens=9))
    loop.step()
    preempted: list[str] = []
    while not preempted:
        preempted += loop.step().preempted
    assert preempted == ["r0"]
    loop.run()
    assert list(loop.finished) == ["r1", "r0"]


def test_blocks_are_taken_for_an_urgent_request_too() -> None:  # S12
    loop = policy_loop("priority", num_blocks=8)
    loop.add(*(make_request(number, 15, priority=number, max_tokens=2) for number in range(2)))
    loop.step()
    loop.add(make_request(2, 12, priority=-1, max_tokens=2))
    output = loop.step()
    while "r2" not in scheduled(output):
        output = loop.step()
    assert "r1" not in loop.finished
    loop.run()


def test_urgent_requests_one_after_the_other_cost_bounded_work() -> None:  # S11, S12
    loop = policy_loop("priority", limits=make_limits(max_num_seqs=2, max_num_batched_tokens=64))
    loop.add(make_request(0, 30, priority=9, max_tokens=20), make_request(1, 30, priority=8, max_tokens=20))
    for number in range(2, 62):
        loop.add(make_request(number, 4, priority=number % 3, max_tokens=2))
        loop.step()
    loop.run(max_steps=600)
    assert loop.preemptions <= 60
