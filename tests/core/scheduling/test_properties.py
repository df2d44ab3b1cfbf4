"""Random loads under random constraints with policies that answer at random, or against all sense."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.interfaces import NoOptions, Policy, PolicyState, RequestView, SchedulerContext
from enginebay.testing import random_load
from support.loop import Arrival, play


class Lottery(Policy[NoOptions]):
    """Everything by lot."""

    def __init__(self, context: SchedulerContext[NoOptions]) -> None:
        super().__init__(context)
        self.random = Random(context.limits.max_num_seqs + context.kv.num_blocks)
        self.window = self.random.choice((0, 1, 5))

    def key(self, request: RequestView) -> tuple[int]:
        return (self.random.randrange(5),)

    def choose(self, requests: Sequence[RequestView]) -> int:
        return self.random.randrange(len(requests))

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        index = self.random.randrange(len(candidates) + 1)
        return index if index < len(candidates) else None

    def admit(self, request: RequestView, state: PolicyState) -> bool:
        return self.random.random() < 0.8


class Overtaking(Lottery):
    """By lot, and preempted requests have no privilege."""

    may_overtake_preempted = True


class Spiteful(Lottery):
    """Takes from whoever did not ask."""

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        others = [index for index, view in enumerate(candidates) if view.request_id != needed.request_id]
        return others[-1] if others else 0


class Never(Lottery):
    """Never preempts."""

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        return None


POLICIES = [Arrival, Lottery, Overtaking, Spiteful, Never]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), depth=st.sampled_from([1, 2, 3]))
def test_every_request_ends_once_within_all_bounds(  # S11, S17
    policy: type[Policy[NoOptions]], seed: int, depth: int
) -> None:
    play(policy, random_load(seed, num_requests=25), depth=depth)


def test_the_loads_are_worth_playing() -> None:
    """Loads that never preempt, abort, hit a prefix or split a prompt would prove little."""
    preemptions = hits = aborts = 0
    for seed in range(40):
        loop = play(Arrival, random_load(seed))
        preemptions += loop.preemptions
        hits += loop.cache.prefix_hits
        aborts += sum(reason == "abort" for reason in loop.finished.values())
    assert preemptions > 50
    assert hits > 200
    assert aborts > 50


@pytest.mark.soak
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
def test_many_loads(policy: type[Policy[NoOptions]]) -> None:  # S17
    for seed in range(400):
        for depth in (1, 2):
            play(policy, random_load(seed, num_requests=60), depth=depth)
