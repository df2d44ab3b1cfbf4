"""The waiting line: the policy's order, its window, and the bound on how long anybody is overtaken."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from enginebay.interfaces import RequestView
from enginebay.scheduling._line import STARVATION_BOUND
from enginebay.testing import CoreLoop, make_limits, make_request
from support.loop import Arrival, loop_of

ONE = make_limits(max_num_seqs=1)


class ByPriority(Arrival):
    def key(self, request: RequestView) -> tuple[int]:
        return (request.priority,)


class Newest(ByPriority):
    """Of the first three by priority, the one that came last."""

    window = 3

    def choose(self, requests: Sequence[RequestView]) -> int:
        assert len(requests) <= 3
        assert [view.priority for view in requests] == sorted(view.priority for view in requests)
        return max(range(len(requests)), key=lambda index: requests[index].arrival_number)


class Overtaking(ByPriority):
    may_overtake_preempted = True


def order_of_start(loop: CoreLoop) -> list[str]:
    order = []
    while loop.scheduler.has_requests():
        output = loop.step()
        order += [resumed.request_id for resumed in output.resumed]
        order += [new.request_id for new in output.new]
    return order


def test_keys_decide_and_equal_keys_keep_arrival() -> None:
    loop = loop_of(ByPriority, limits=ONE)
    loop.add(*(make_request(number, priority=priority, max_tokens=1) for number, priority in enumerate((2, 1, 2, 1))))
    assert order_of_start(loop) == ["r1", "r3", "r0", "r2"]


def test_choose_sees_the_first_of_the_line_also_when_better_ones_come_later() -> None:
    loop = loop_of(Newest, limits=ONE)
    loop.add(*(make_request(number, priority=number, max_tokens=1) for number in range(5)))
    first = loop.step()
    assert [new.request_id for new in first.new] == ["r2"]
    loop.add(make_request(5, priority=-1, max_tokens=1), make_request(6, priority=9, max_tokens=1))
    loop.abort("r0")
    # left are r1 r3 r4 r5 r6; the window holds r5 r1 r3, then r1 r3 r4, then r1 r3 r6, then r1 r3, then r1
    assert order_of_start(loop) == ["r5", "r4", "r6", "r3", "r1"]


def test_a_preempted_request_stays_ahead_unless_the_policy_says_otherwise() -> None:
    for policy, expected in ((ByPriority, ["r0", "r1"]), (Overtaking, ["r1", "r0"])):
        loop = loop_of(policy, limits=ONE)
        loop.add(make_request(0, priority=5))
        loop.step()
        loop.scheduler.preempt_all()
        loop.add(make_request(1, priority=1))
        assert order_of_start(loop) == expected


def test_nobody_is_overtaken_without_end() -> None:
    loop = loop_of(ByPriority, limits=ONE)
    loop.add(make_request(0, 1, priority=9, max_tokens=1))
    number = 1
    while "r0" not in loop.finished:
        loop.add(make_request(number, 1, max_tokens=1))
        number += 1
        loop.step()
    assert len(loop.finished) == STARVATION_BOUND + 1


@pytest.mark.parametrize("policy", [Arrival, Newest])
def test_aborted_requests_do_not_pile_up(policy: type[Arrival]) -> None:
    loop = loop_of(policy, limits=ONE)
    loop.add(make_request(0, max_tokens=200))
    loop.step()
    for number in range(1, 2000):
        loop.add(make_request(number))
        loop.abort(f"r{number}")
    line = loop.scheduler._state.line  # type: ignore[attr-defined]  # the inside is what must stay small
    assert len(line) == 0
    assert len(line._heap) + len(line._overtaking) + len(line._front) < 300
