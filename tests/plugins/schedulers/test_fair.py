"""fair: whatever the arrival order, each tenant is served its share, and idling saves nothing up."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from enginebay.testing import CoreLoop, make_limits, make_request
from enginebay_fair.policy import FairOptions
from support.policies import policy_loop

ONE = make_limits(max_num_seqs=1)


def served(loop: CoreLoop) -> Counter[str]:
    """Prompt and output tokens so far, per tenant, of all that started."""
    tokens: Counter[str] = Counter()
    for request_id, request in loop.requests.items():
        if loop.output[request_id]:
            tokens[request.tenant] += len(request.prompt_token_ids) + len(loop.output[request_id])
    return tokens


def run_until(loop: CoreLoop, *request_ids: str) -> None:
    while not all(request_id in loop.finished for request_id in request_ids):
        loop.step()


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32), seats=st.sampled_from([1, 3, 8]), depth=st.sampled_from([1, 2, 3]))
def test_two_requests_are_not_stuck_behind_a_hundred(seed: int, seats: int, depth: int) -> None:  # S16
    """While the small tenant waits, the large one gets no more than the small one and what may run at once."""
    random = Random(seed)
    tenants = ["many"] * 100 + ["few"] * 2
    random.shuffle(tenants)
    loop = policy_loop("fair", limits=make_limits(max_num_seqs=seats, max_num_batched_tokens=256), depth=depth)
    for number, tenant in enumerate(tenants):
        length = random.randrange(4, 20)
        loop.add(make_request(number, length, tenant=tenant, max_tokens=random.randrange(2, 10)))
    run_until(loop, *(f"r{number}" for number, tenant in enumerate(tenants) if tenant == "few"))
    tokens = served(loop)
    assert tokens["many"] <= tokens["few"] + (seats + 1) * 30
    loop.run()


def test_a_hundred_come_first_and_the_two_are_next() -> None:  # S16
    loop = policy_loop("fair", limits=ONE)
    loop.add(*(make_request(number, tenant="many") for number in range(100)))
    for _ in range(20):
        loop.step()
    loop.add(make_request(100, tenant="few"), make_request(101, tenant="few"))
    already = len(loop.finished)
    run_until(loop, "r100", "r101")
    assert len(loop.finished) - already <= 5
    loop.run()


def test_requests_that_start_in_one_step_are_counted_one_by_one() -> None:  # S16
    loop = policy_loop("fair", limits=make_limits(max_num_seqs=8, max_num_batched_tokens=256))
    loop.add(*(make_request(number, tenant="many") for number in range(8)))
    loop.add(*(make_request(number, tenant="few") for number in range(8, 16)))
    started = [new.request_id for new in loop.step().new]
    assert sorted(started) == sorted([f"r{n}" for n in range(4)] + [f"r{n}" for n in range(8, 12)])


def test_work_counts_and_not_requests() -> None:
    loop = policy_loop("fair", limits=ONE)
    loop.add(*(make_request(number, 40, tenant="long", max_tokens=20) for number in range(4)))
    loop.add(*(make_request(number, 10, tenant="short", max_tokens=5) for number in range(4, 20)))
    run_until(loop, "r1")
    assert served(loop)["short"] == pytest.approx(served(loop)["long"], abs=75)
    assert sum(loop.requests[r].tenant == "short" for r in loop.finished) >= 4
    loop.run()


@pytest.mark.parametrize(("weights", "share"), [({}, 1), ({"heavy": 3.0}, 3), ({"heavy": 2.0, "light": 0.5}, 4)])
def test_weights_are_the_ratio_of_what_is_served(weights: dict[str, float], share: float) -> None:  # S16
    loop = policy_loop("fair", limits=ONE, weights=weights)
    for number in range(400):
        loop.add(make_request(number, tenant=("heavy", "light")[number % 2]))
    while len(loop.finished) < 200:
        loop.step()
    tokens = served(loop)
    assert tokens["heavy"] / tokens["light"] == pytest.approx(share, rel=0.1)
    loop.run()


def test_a_tenant_that_was_idle_has_saved_nothing_up() -> None:
    loop = policy_loop("fair", limits=ONE)
    loop.add(*(make_request(number, tenant="busy") for number in range(60)))
    run_until(loop, "r29")
    loop.add(*(make_request(number, tenant="back") for number in range(60, 120)))
    while len(loop.finished) < 50:
        loop.step()
    order = [loop.requests[request_id].tenant for request_id in list(loop.finished)[31:]]
    assert all(one != other for one, other in pairwise(order)), "they take turns"
    loop.run()


def test_going_away_and_coming_back_settles_no_debt() -> None:
    """A tenant that was served much more than the others cannot clear that by a moment without requests."""
    loop = policy_loop("fair", limits=ONE)
    loop.add(make_request(0, 100, tenant="big", max_tokens=50))
    loop.add(*(make_request(number, tenant="small") for number in range(1, 30)))
    run_until(loop, "r0")
    loop.step()
    loop.add(make_request(30, tenant="big"))
    run_until(loop, "r30")
    assert len(loop.finished) >= 12, "12 tokens each, against the 150 of the first"
    loop.run()


def test_tenants_that_are_gone_leave_nothing_behind() -> None:
    loop = policy_loop("fair", limits=make_limits(max_num_seqs=4))
    for number in range(300):
        loop.add(make_request(number, tenant=f"tenant {number}"))
        loop.step()
    loop.run()
    loop.add(make_request(300, tenant="last"))
    policy = loop.scheduler._state.door._policy  # type: ignore[attr-defined]  # what it keeps is the point
    assert (list(policy._served), len(policy._order), len(policy._unfinished)) == (["last"], 1, 1)
    loop.run()


def test_tokens_that_are_cached_are_not_counted() -> None:
    loop = policy_loop("fair", limits=ONE, prefix_caching=True)
    document = tuple(range(40))
    loop.add(make_request(0, (*document, 1), tenant="a"), make_request(1, 41, tenant="b"))
    loop.run()
    loop.add(*(make_request(number, (*document, number), tenant="a") for number in range(2, 12)))
    loop.add(*(make_request(number, 41, tenant="b") for number in range(12, 22)))
    while len(loop.finished) < 8:
        loop.step()
    assert Counter(loop.requests[r].tenant for r in list(loop.finished)[2:]) == {"a": 5, "b": 1}
    loop.run()


def test_out_of_blocks_the_tenant_that_was_served_most_gives_way() -> None:
    loop = policy_loop("fair", num_blocks=10)
    loop.add(*(make_request(number, 8, tenant="one", max_tokens=9) for number in range(3)))
    loop.add(make_request(3, 8, tenant="other", max_tokens=9))
    loop.step()
    loop.add(make_request(4, 4, tenant="other", max_tokens=9))
    preempted: list[str] = []
    while not preempted:
        preempted += loop.step().preempted
    assert preempted == ["r2"]
    loop.run()


@pytest.mark.parametrize("weight", [0, -1.0, "much", float("inf")])
def test_a_weight_is_a_number_above_0(weight: object) -> None:
    with pytest.raises(ValidationError, match=r"weights\.a"):
        FairOptions(weights={"a": weight})  # type: ignore[dict-item]
