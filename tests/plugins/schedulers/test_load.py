"""Every policy under long seeded loads, through the mechanics and the simulated core that checks each step.

``run_load`` ends with ``check_quiet``: each request ended once with its own tokens, all blocks are free, all counters
zero. The rules of the step (budgets, constraints, blocks written before they are read, one owner) are checked at each.
"""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec import structs

from enginebay.messages import FinishReason
from enginebay.testing import CoreLoop, enliven, guess, random_load
from support.policies import EVERY, policy_plugin

DEPTHS = (1, 2, 3)
SEEDS = (9, 12, 71)
"""Loads of which each runs out of blocks more than 20 times; the odd ones are played with proposals."""


def play(name: str, seed: int, depth: int, num_requests: int, *, propose: bool) -> CoreLoop:
    """A load with aborts, priorities, tenants, deadlines, several choices and a tiny cache; with proposals, perhaps."""
    load = enliven(random_load(seed, num_requests=num_requests), seed)
    constraints = load.constraints
    if propose:
        constraints = structs.replace(constraints, max_tokens_per_step=4)
    plugin = policy_plugin(name)
    loop = CoreLoop(
        plugin,
        plugin.options(**({"weights": {"a": 2.5}} if name == "fair" else {})),
        limits=load.limits,
        cache=load.cache(),
        constraints=constraints,
        depth=depth,
        propose=guess if propose else None,
    )
    loop.run_load(load)
    return loop


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", EVERY)
def test_each_request_ends_once_and_nothing_is_left(name: str, depth: int) -> None:  # S17
    for seed in SEEDS:
        play(name, seed, depth, 50, propose=seed % 2 == 1)


def test_the_loads_are_worth_playing() -> None:
    """Loads that never preempt, abort, hit a prefix or accept a proposal would prove little."""
    ended: Counter[FinishReason] = Counter()
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        loop = play("fcfs", seed, 2, 50, propose=seed % 2 == 1)
        ended.update(loop.finished.values())
        seen += Counter(
            preempted=loop.preemptions,
            hits=loop.cache.prefix_hits,
            proposed=loop.num_proposed,
            accepted=loop.num_accepted,
            choices=sum(request.choice > 0 for request in loop.requests.values()),
            due=sum(request.deadline is not None for request in loop.requests.values()),
        )
    assert min(ended[reason] for reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT)) > 15
    assert seen["proposed"] > seen["accepted"] > 30
    assert min(seen[what] for what in ("preempted", "hits", "choices", "due")) > 15, seen


@pytest.mark.soak
@pytest.mark.timeout(1200)  # a minute on a machine of its own
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", EVERY)
def test_a_hundred_loads(name: str, depth: int) -> None:  # S17
    for seed in range(100):
        play(name, seed, depth, 200, propose=seed % 2 == 1)


@pytest.mark.soak
@pytest.mark.timeout(1200)  # a minute on a machine of its own
@pytest.mark.parametrize("propose", [False, True])
@pytest.mark.parametrize("name", EVERY)
def test_ten_thousand_requests(name: str, propose: bool) -> None:  # S17
    for depth in DEPTHS:
        loop = play(name, 9, depth, 10_000, propose=propose)
        assert len(loop.finished) >= 10_000
        assert loop.preemptions > 1000, "a load that never runs out of blocks proves little"
