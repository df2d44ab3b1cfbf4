"""A policy that preempts running requests for waiting ones: when it is asked, and what bounds it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from enginebay.interfaces import RequestView
from enginebay.messages import Committed, FinishReason
from enginebay.testing import CoreLoop, make_limits, make_request
from support.loop import Arrival, loop_of, scheduled
from support.schedule_watch import watch


class Urgent(Arrival):
    """(priority, arrival); a waiting request takes from those of a larger priority."""

    may_overtake_preempted = True
    preempts_running = True

    def key(self, request: RequestView) -> tuple[int, int]:
        return (request.priority, request.arrival_number)

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        index = max(range(len(candidates)), key=lambda at: self.key(candidates[at]))
        return index if candidates[index].priority > needed.priority else None


class Greedy(Urgent):
    """Everybody gives way to everybody who waits."""

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        return 0


TWO = make_limits(max_num_seqs=2)


def test_an_urgent_request_takes_a_place_in_a_full_line() -> None:  # S12
    loop = loop_of(Urgent, limits=TWO)
    loop.add(make_request(0, priority=1, max_tokens=9), make_request(1, priority=1, max_tokens=9))
    loop.step()
    loop.add(make_request(2, priority=1), make_request(3, priority=0))
    output = loop.step()
    assert output.preempted == ("r1",)  # the latest of the least urgent
    assert list(scheduled(output)) == ["r0", "r3"]
    loop.run()


def test_equals_wait_for_one_another() -> None:  # S12
    loop = loop_of(Urgent, limits=TWO)
    loop.add(*(make_request(number, priority=1) for number in range(6)))
    loop.run()
    assert loop.preemptions == 0


def test_an_urgent_request_takes_blocks_too() -> None:  # S12
    loop = loop_of(Urgent, num_blocks=6, prefix_caching=False)
    loop.add(make_request(0, 10, priority=2, max_tokens=2), make_request(1, 8, priority=1, max_tokens=2))
    loop.step()
    loop.add(make_request(2, 12, priority=0, max_tokens=2))
    output = loop.step()
    assert output.preempted == ("r0",)
    assert scheduled(output) == {"r1": 1, "r2": 12}
    loop.run()


def test_as_many_give_way_as_are_needed_for_one() -> None:
    loop = loop_of(Urgent, num_blocks=6, prefix_caching=False)
    loop.add(*(make_request(number, 7, priority=5, max_tokens=2) for number in range(3)))
    loop.step()
    loop.add(make_request(3, 15, priority=0, max_tokens=2), make_request(4, 3, priority=0, max_tokens=2))
    output = loop.step()
    assert output.preempted == ("r2", "r1")
    assert list(scheduled(output)) == ["r0", "r3"]  # one request a step has others give way to it
    loop.run()


def test_without_the_switch_nobody_is_asked_for_a_waiting_request() -> None:
    class Waits(Urgent):
        preempts_running = False

    loop = loop_of(Waits, limits=TWO)
    loop.add(make_request(0, priority=1), make_request(1, priority=1))
    loop.step()
    loop.add(make_request(2, priority=0))
    loop.run()
    assert loop.preemptions == 0


def test_without_eviction_urgency_does_not_preempt() -> None:
    loop = loop_of(Urgent, limits=make_limits(max_num_seqs=2, no_evict=True))
    loop.add(make_request(0, priority=1), make_request(1, priority=1))
    loop.step()
    loop.add(make_request(2, priority=0))
    loop.run()
    assert loop.preemptions == 0


def test_who_gave_way_is_spared_until_it_has_a_token() -> None:
    limits = make_limits(max_num_seqs=1, max_num_batched_tokens=4)
    loop = loop_of(Urgent, limits=limits, prefix_caching=False)
    loop.add(make_request(0, 11, priority=9, max_tokens=3))
    loop.step()
    loop.step()
    loop.add(make_request(1, 2, priority=0, max_tokens=1))
    assert loop.step().preempted == ("r0",)  # it would have had 3 of the step's 4 tokens
    loop.add(make_request(2, 2, priority=9, max_tokens=1))
    loop.step()
    loop.step()
    loop.add(make_request(3, 2, priority=0, max_tokens=1))
    steps = [loop.step() for _ in range(2)]
    assert [output.preempted for output in steps] == [(), ("r0",)]  # its prompt is computed to its end first
    loop.run()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_each_token_costs_at_most_one_urgent_preemption(depth: int) -> None:  # S11
    loop = loop_of(Greedy, limits=make_limits(max_num_seqs=2, max_num_batched_tokens=6), depth=depth)
    loop.add(*(make_request(number, 5, max_tokens=5) for number in range(8)))
    loop.run(max_steps=1000)
    assert 0 < loop.preemptions <= 8 * 5


def test_an_urgent_flood_does_not_stop_the_others_for_ever() -> None:
    loop = loop_of(Urgent, limits=make_limits(max_num_seqs=1))
    loop.add(make_request(0, 4, priority=9, max_tokens=3))
    number = 1
    while "r0" not in loop.finished:
        assert number < 4000
        loop.add(make_request(number, 1, priority=0, max_tokens=1))
        number += 1
        loop.step()


def steps_until(loop: CoreLoop, request_id: str, most: int = 10) -> int:
    """Steps until the request runs."""
    return next(count for count in range(1, most) if request_id in scheduled(loop.step()))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_victim_finishes_its_steps_in_flight_first(depth: int) -> None:  # S13, S14
    loop = loop_of(Urgent, limits=TWO, depth=depth)
    watch(loop)
    loop.add(make_request(0, priority=1, max_tokens=30), make_request(1, priority=1, max_tokens=30))
    for _ in range(4):
        loop.step()
    loop.add(make_request(2, priority=0))
    assert steps_until(loop, "r2") == depth
    loop.run()
    assert loop.preemptions == 1


def test_one_that_stands_still_goes_on_when_it_is_not_needed_after_all() -> None:
    loop = loop_of(Urgent, limits=TWO, depth=2)
    loop.add(make_request(0, priority=1, max_tokens=9), make_request(1, priority=1, max_tokens=9))
    loop.step()
    loop.step()
    loop.add(make_request(2, priority=0))
    assert list(scheduled(loop.step())) == ["r0"]
    loop.abort("r2")
    assert list(scheduled(loop.step())) == ["r0", "r1"]
    loop.run()
    assert loop.preemptions == 0


def test_blocks_of_one_that_stands_still_are_said_when_it_runs_again() -> None:
    """r1 gets a block in the very step in which it is made to stand still: the runner must hear of it later."""
    loop = loop_of(Urgent, limits=TWO, depth=2)
    loop.add(make_request(0, 8, priority=1, max_tokens=9), make_request(1, 8, priority=1, max_tokens=9))
    loop.step()
    loop.add(make_request(2, priority=0))
    assert list(scheduled(loop.step())) == ["r0"]
    loop.abort("r2")
    rows = {row.request_id: row.new_block_ids for row in loop.step().running}
    assert [len(group) for group in rows["r1"]] == [1]
    loop.run()


def test_a_victim_that_ends_meanwhile_makes_room_by_itself() -> None:
    loop = loop_of(Urgent, limits=TWO, depth=2)
    scheduler = loop.scheduler
    for request in (make_request(0, priority=1), make_request(1, priority=1, max_tokens=1)):
        scheduler.add_request(request)
    first = scheduler.schedule()
    scheduler.add_request(make_request(2, priority=0))
    second = scheduler.schedule()
    assert list(second.num_scheduled_tokens) == ["r0"]
    done = Committed(token_ids={"r0": (7,), "r1": (7,)}, finished={"r1": FinishReason.LENGTH})
    scheduler.update_from_output(first, done)
    third = scheduler.schedule()
    assert (third.preempted, third.finished) == ((), ("r1",))
    assert list(third.num_scheduled_tokens) == ["r0", "r2"]


def test_a_none_stands_until_something_changes() -> None:
    asked: list[str] = []

    class Counting(Urgent):
        def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
            asked.append(needed.request_id)
            return super().victim(candidates, needed)

    loop = loop_of(Counting, limits=TWO)
    loop.add(make_request(0, max_tokens=5), make_request(1, max_tokens=9), make_request(2), make_request(3))
    for _ in range(5):
        loop.step()
    assert asked == ["r2"]
    loop.add(make_request(4, priority=-1, max_tokens=1))
    loop.step()  # r0 has ended, r4 has its place; r2 is asked for among others
    assert asked == ["r2", "r2"]
    loop.run()


def test_where_minds_move_with_time_the_policy_is_asked_at_each_step() -> None:
    asked: list[str] = []

    class Moving(Urgent):
        window = 4

        def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
            asked.append(needed.request_id)
            return super().victim(candidates, needed)

    loop = loop_of(Moving, limits=TWO)
    loop.add(make_request(0, max_tokens=9), make_request(1, max_tokens=9), make_request(2))
    for _ in range(5):
        loop.step()
    assert asked == ["r2"] * 4  # all steps but the first, which had room and nobody else
    loop.run()
