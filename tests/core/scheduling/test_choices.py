"""Several choices of one request share the blocks of its prompt: the others wait until the first has computed it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.interfaces import BatchConstraints, RequestView
from enginebay.messages import EngineRequest
from enginebay.testing import make_limits, make_request
from support.loop import Arrival, loop_of, scheduled


def choices(
    count: int, prompt: int = 10, *, max_tokens: int = 4, number: int = 0, priority: int = 0
) -> list[EngineRequest]:
    """The choices of one request, ``c<number>-<choice>``."""
    first = make_request(number, prompt, max_tokens=max_tokens, priority=priority)
    return [
        msgspec.structs.replace(first, request_id=f"c{number}-{choice}", choice=choice, parent_id=f"c{number}")
        for choice in range(count)
    ]


def test_the_prompt_is_computed_once() -> None:
    loop = loop_of()
    loop.add(*choices(3, 10))
    assert scheduled(loop.step()) == {"c0-0": 10}
    assert loop.scheduler.make_stats().num_waiting == 2
    assert scheduled(loop.step()) == {"c0-0": 1, "c0-1": 2, "c0-2": 2}  # 2 blocks of 4 are shared
    loop.run()
    assert loop.cache.prefix_hits == 16


def test_with_steps_in_flight_they_wait_for_the_acknowledgement() -> None:
    loop = loop_of(depth=2)
    loop.add(*choices(2, 10))
    assert [scheduled(loop.step()) for _ in range(3)] == [
        {"c0-0": 10},
        {"c0-0": 1},
        {"c0-0": 1, "c0-1": 2},
    ]
    loop.run()


def test_they_stand_in_nobody_s_way() -> None:
    loop = loop_of(limits=make_limits(max_num_batched_tokens=8))
    loop.add(*choices(3, 21), make_request(9, 3))
    assert scheduled(loop.step()) == {"c0-0": 8}
    assert scheduled(loop.step()) == {"c0-0": 8}
    assert scheduled(loop.step()) == {"c0-0": 5, "r9": 3}  # behind the choices, and before them
    loop.run()


def test_the_last_blocks_are_waited_for_and_not_the_first() -> None:
    loop = loop_of(limits=make_limits(max_num_batched_tokens=8))
    loop.add(*choices(2, 17))
    assert [scheduled(loop.step()) for _ in range(3)] == [{"c0-0": 8}, {"c0-0": 8}, {"c0-0": 1, "c0-1": 1}]
    loop.run()


def test_a_cached_prompt_is_not_waited_for() -> None:
    loop = loop_of()
    first, *others = choices(3, 10)
    loop.add(msgspec.structs.replace(first, request_id="before", parent_id=""))
    loop.run()
    loop.add(first, *others)
    assert scheduled(loop.step()) == {"c0-0": 2, "c0-1": 2, "c0-2": 2}
    loop.run()


def test_where_nothing_can_be_shared_nobody_waits() -> None:
    for loop, prompt in (
        (loop_of(), 4),  # one block, whose last token must be computed anyway
        (loop_of(prefix_caching=False), 10),
        (loop_of(constraints=BatchConstraints(prefix_caching=False)), 10),
    ):
        loop.add(*choices(2, prompt))
        assert scheduled(loop.step()) == {"c0-0": prompt, "c0-1": prompt}
        loop.run()


def test_when_the_first_is_gone_the_others_go_on() -> None:
    loop = loop_of(limits=make_limits(max_num_batched_tokens=8))
    loop.add(*choices(3, 20))
    loop.step()
    loop.abort("c0-0")
    assert list(scheduled(loop.step())) == ["c0-1"]
    loop.run()
    loop = loop_of()
    loop.add(*choices(3, 20))
    loop.abort("c0-0", "c0-1")  # before anything ran
    assert scheduled(loop.step()) == {"c0-2": 20}
    loop.run()


def test_one_that_is_held_can_be_ended() -> None:  # S1
    loop = loop_of(limits=make_limits(max_num_batched_tokens=8))
    loop.add(*choices(3, 20))
    loop.step()
    loop.abort("c0-1")
    assert loop.scheduler.make_stats().num_waiting == 1
    loop.run()


def test_when_the_first_is_preempted_the_others_do_not_wait_for_it() -> None:
    loop = loop_of(limits=make_limits(max_num_batched_tokens=8))
    loop.add(*choices(2, 20))
    loop.step()
    loop.scheduler.preempt_all()
    assert loop.scheduler.make_stats().num_waiting == 2
    order = []
    while loop.scheduler.has_requests():
        output = loop.step()
        order += [row.request_id for row in output.resumed] + [row.request_id for row in output.new]
    assert order == ["c0-0", "c0-1"]
    loop.check_quiet()


class ByPriority(Arrival):
    def key(self, request: RequestView) -> tuple[int, int]:
        return (request.priority, request.arrival_number)


def test_a_released_choice_takes_the_place_that_its_key_gives_it() -> None:
    loop = loop_of(ByPriority, limits=make_limits(max_num_seqs=2))
    loop.add(*choices(2, 10, max_tokens=2, priority=0), *(make_request(n, 10, priority=n) for n in (1, 2, 3)))
    order = [new.request_id for new in loop.step().new]
    assert order == ["c0-0", "r1"]
    while loop.scheduler.has_requests():
        order += [new.request_id for new in loop.step().new]
    assert order == ["c0-0", "r1", "c0-1", "r2", "r3"]


def test_an_id_that_comes_again_waits_for_its_own_first_choice() -> None:
    loop = loop_of()
    loop.add(*choices(2, 10))
    loop.run()
    gate = loop.scheduler._state.gate  # type: ignore[attr-defined]  # the inside is what must stay empty
    assert gate._first == {}


CAPPED = make_limits(max_num_batched_tokens=200, long_prefill_token_threshold=4, max_model_len=256)


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_choices_that_are_held_do_not_count_as_others_that_wait(count: int, num_stages: int) -> None:  # S6
    loop = loop_of(limits=CAPPED, num_stages=num_stages)
    loop.add(*choices(count, 100))
    assert scheduled(loop.step()) == {"c0-0": 100}
    loop.run()


def test_others_that_wait_count_beside_them() -> None:  # S6
    loop = loop_of(limits=CAPPED)
    loop.add(*choices(3, 100), make_request(9, 20))
    assert scheduled(loop.step()) == {"c0-0": 4, "r9": 20}
    assert scheduled(loop.step())["c0-0"] == 96
    loop.run()


def test_once_released_they_count() -> None:  # S6
    """The first choice gives way with its prompt half computed: the other two wait for nothing but their turn now."""
    loop = loop_of(limits=make_limits(max_num_batched_tokens=40, long_prefill_token_threshold=4))
    loop.add(*choices(3, 60))
    assert scheduled(loop.step()) == {"c0-0": 40}
    line = loop.scheduler._state.line  # type: ignore[attr-defined]  # the mechanics' own count is the point
    assert (len(line), line.num_ready) == (2, 0)
    loop.abort("c0-1")
    assert (len(line), line.num_ready) == (1, 0)
    loop.scheduler.preempt_all()
    assert (len(line), line.num_ready) == (2, 2)
    loop.run()
    assert (len(line), line.num_ready) == (0, 0)


@settings(max_examples=30, deadline=None)
@given(prompt=st.integers(2, 100), count=st.integers(2, 5), budget=st.integers(4, 120), cap=st.integers(1, 50))
def test_a_prompt_takes_as_many_steps_with_choices_as_without(prompt: int, count: int, budget: int, cap: int) -> None:
    """As long as the others are held, which is until its last whole block is computed."""
    limits = make_limits(max_num_batched_tokens=budget, long_prefill_token_threshold=cap, max_model_len=256)
    steps = []
    for choice_count in (1, count):
        loop = loop_of(limits=limits, block_size=4)
        loop.add(*choices(choice_count, prompt))
        taken: list[int] = []
        while sum(taken) < (prompt - 1) // 4 * 4:
            taken.append(scheduled(loop.step())["c0-0"])
        steps.append(taken)
        loop.run()
    assert steps[0] == steps[1]
