"""Out of blocks: who gives way, what is given back, and that it ends."""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.interfaces import RequestView
from enginebay.testing import make_limits, make_request
from support.loop import Arrival, loop_of, scheduled


class First(Arrival):
    """The first of the running line gives way."""

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        return 0


class Other(Arrival):
    """Anybody but the one who asks: two that cannot both fit would go on for ever."""

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        return next((i for i, view in enumerate(candidates) if view.request_id != needed.request_id), None)


class Nobody(Arrival):
    """Never preempts."""

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        return None


def test_the_last_gives_way_and_comes_back_first_with_its_output() -> None:  # S9
    loop = loop_of(num_blocks=6, prefix_caching=False)
    loop.add(make_request(0, 7, max_tokens=4), make_request(1, 7, max_tokens=4), make_request(2, 7, max_tokens=10))
    loop.step()
    loop.add(make_request(3, 4, max_tokens=10))
    loop.step()  # all three at 8 tokens, all blocks taken
    output = loop.step()
    assert output.preempted == ("r2",)
    assert scheduled(output) == {"r0": 1, "r1": 1}
    assert loop.scheduler.make_stats().num_waiting == 2
    while not output.resumed:
        assert not output.new, "r3 overtook the preempted r2"
        output = loop.step()
    assert list(scheduled(output))[:1] == ["r2"]
    (resumed,) = output.resumed
    assert (resumed.request_id, len(resumed.token_ids)) == ("r2", 9)  # its prompt and the two tokens it had put out
    loop.run()  # checks that every request put out the same tokens as undisturbed
    assert loop.preemptions >= 1


def test_victims_of_one_step_keep_their_order() -> None:  # S9
    loop = loop_of(num_blocks=8, block_size=4, prefix_caching=False)
    loop.add(*(make_request(number, 8, max_tokens=5) for number in range(4)))
    loop.step()
    output = loop.step()
    assert output.preempted == ("r3", "r2")
    order = []
    while loop.scheduler.has_requests():
        order += [resumed.request_id for resumed in loop.step().resumed]
    assert order[:2] == ["r2", "r3"]


def test_a_victim_scheduled_in_this_step_gives_its_tokens_and_budget_back() -> None:  # S10
    limits = make_limits(max_num_batched_tokens=9)
    loop = loop_of(First, num_blocks=6, prefix_caching=False, limits=limits)
    loop.add(make_request(0, 6, max_tokens=10), make_request(1, 3, max_tokens=10), make_request(2, 9, max_tokens=3))
    assert scheduled(loop.step()) == {"r0": 6, "r1": 3}
    assert scheduled(loop.step()) == {"r0": 1, "r1": 1, "r2": 7}
    assert loop.cache.num_free_blocks == 1
    output = loop.step()
    # r0 had its token, r1 took the last block, r2 needs one: r0 gives way, though it was in the step already
    assert output.preempted == ("r0",)
    assert scheduled(output) == {"r1": 1, "r2": 2}
    assert [row.request_id for row in output.running] == ["r1", "r2"]
    loop.run()


def test_no_one_is_skipped_when_a_victim_leaves_the_line() -> None:  # S10
    loop = loop_of(First, num_blocks=8, prefix_caching=False)
    loop.add(make_request(0, 8, max_tokens=9), *(make_request(number, 4, max_tokens=9) for number in range(1, 6)))
    loop.step()
    loop.add(make_request(6, 4, max_tokens=1))
    output = loop.step()
    stayed = [f"r{number}" for number in range(6) if f"r{number}" not in output.preempted]
    assert output.preempted
    assert list(scheduled(output)) == stayed
    loop.run()


def test_two_that_cannot_both_fit_come_to_an_end() -> None:  # S11
    for policy in (Arrival, First, Other, Nobody):
        for budget in (3, 1000):
            limits = make_limits(max_num_batched_tokens=budget)
            loop = loop_of(policy, num_blocks=8, prefix_caching=False, limits=limits)
            loop.add(make_request(0, 16, max_tokens=16), make_request(1, 16, max_tokens=16))
            loop.run(max_steps=500)
            assert loop.preemptions <= 40, f"{policy.__name__} with {budget} tokens a step: {loop.preemptions}"


def test_the_oldest_is_not_disturbed_under_arrival_order() -> None:  # S11
    loop = loop_of(num_blocks=8, prefix_caching=False)
    loop.add(make_request(0, 16, max_tokens=16), make_request(1, 16, max_tokens=16))
    preempted: list[str] = []
    while "r0" not in loop.finished:
        preempted += loop.step().preempted
    assert loop.steps == 16  # one token a step, as if alone
    assert "r0" not in preempted
    loop.run()


def test_a_policy_that_never_preempts_does_not_stop_the_engine() -> None:  # S11
    loop = loop_of(Nobody, num_blocks=4, prefix_caching=False)
    loop.add(make_request(0, 7, max_tokens=8), make_request(1, 7, max_tokens=8))
    loop.run(max_steps=100)
    assert 1 <= loop.preemptions <= 3


def test_a_preempted_request_waits_until_its_whole_context_fits() -> None:  # S11
    loop = loop_of(num_blocks=10, prefix_caching=False, limits=make_limits(max_num_batched_tokens=4))
    loop.add(make_request(0, 12, max_tokens=28), make_request(1, 12, max_tokens=28))
    loop.run()
    assert loop.preemptions <= 3


class Bully(Arrival):
    """Always takes from the first request."""

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        return next((i for i, view in enumerate(candidates) if view.request_id == "r0"), len(candidates) - 1)


def test_nobody_is_made_to_start_again_without_end() -> None:  # S11
    limits = make_limits(max_num_batched_tokens=8, long_prefill_token_threshold=2)
    loop = loop_of(Bully, num_blocks=8, prefix_caching=False, limits=limits)
    loop.add(make_request(0, 20, max_tokens=4))
    for number in range(1, 400):
        loop.add(make_request(number, 3, max_tokens=6))
    while "r0" not in loop.finished:
        loop.step()
    assert len(loop.finished) < 60
    loop.run()


class FirstOvertaking(First):
    """Nobody has a privilege."""

    may_overtake_preempted = True

    def key(self, request: RequestView) -> tuple[int]:
        return (request.priority,)


def test_room_that_was_made_does_not_go_to_the_next_in_line() -> None:
    loop = loop_of(FirstOvertaking, num_blocks=5, prefix_caching=False)
    loop.add(make_request(0, 16), make_request(1, 4))
    loop.step()
    loop.add(make_request(2, 4, priority=-1))
    output = loop.step()
    assert (output.preempted, scheduled(output)) == (("r0",), {"r1": 1})
    assert list(scheduled(loop.step())) == ["r1", "r2"]
    loop.run()


def test_who_ends_before_the_runner_heard_of_the_preemption_is_told_of_once() -> None:
    loop = loop_of()
    loop.add(make_request(0), make_request(1))
    loop.step()
    loop.scheduler.preempt_all()
    loop.abort("r0")
    output = loop.step()
    assert (output.finished, output.preempted) == (("r0",), ("r1",))
    loop.run()
