"""Random loads under random constraints with policies that answer at random, or against all sense."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.interfaces import NoOptions, Policy, PolicyState, RequestView, SchedulerContext
from enginebay.testing import CoreLoop, random_load
from support.guesses import Guesser, with_choices_and_shapes
from support.loop import Arrival, play, plugin_of
from support.schedule_watch import watch


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


class Urgent(Lottery):
    """Running requests give way to waiting ones by lot."""

    preempts_running = True


class UrgentOvertaking(Urgent):
    """The same, and those that gave way have no privilege."""

    may_overtake_preempted = True


POLICIES = [Arrival, Lottery, Overtaking, Spiteful, Never, Urgent, UrgentOvertaking]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 32), depth=st.sampled_from([1, 2, 3]))
def test_every_request_ends_once_within_all_bounds(  # S11, S17
    policy: type[Policy[NoOptions]], seed: int, depth: int
) -> None:
    play(policy, random_load(seed, num_requests=25), depth=depth)


def play_watched(policy: type[Policy[NoOptions]], seed: int, *, depth: int, proposals: int) -> CoreLoop:
    """A load with choices, grammars and proposals, with every step in flight kept account of."""
    load = with_choices_and_shapes(random_load(seed, num_requests=20), seed)
    guesser = Guesser(right=0.6, seed=seed)
    loop = CoreLoop(
        plugin_of(policy),
        NoOptions(),
        limits=load.limits,
        constraints=msgspec.structs.replace(load.constraints, max_tokens_per_step=1 + proposals),
        cache=load.cache(),
        depth=depth,
        propose=guesser if proposals else None,
    )
    guesser.loop = loop
    books = watch(loop)
    loop.run_load(load)
    books.quiet()
    return loop


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32), depth=st.sampled_from([1, 2, 3]), proposals=st.integers(0, 4))
def test_the_books_agree_at_every_step(  # S13, S14
    policy: type[Policy[NoOptions]], seed: int, depth: int, proposals: int
) -> None:
    play_watched(policy, seed, depth=depth, proposals=proposals)


def test_the_loads_are_worth_playing() -> None:
    """Loads that never preempt, abort, hit a prefix or split a prompt would prove little."""
    preemptions = hits = aborts = proposed = accepted = 0
    for seed in range(30):
        loop = play_watched(Arrival, seed, depth=2, proposals=3)
        preemptions += loop.preemptions
        hits += loop.cache.prefix_hits
        aborts += sum(reason == "abort" for reason in loop.finished.values())
        proposed += loop.num_proposed
        accepted += loop.num_accepted
    assert preemptions > 50
    assert hits > 200
    assert aborts > 30
    assert 300 < accepted < proposed - 100


@pytest.mark.soak
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
def test_many_loads(policy: type[Policy[NoOptions]]) -> None:  # S17
    for seed in range(400):
        for depth in (1, 2, 3):
            play(policy, random_load(seed, num_requests=60), depth=depth)
            play_watched(policy, seed, depth=depth, proposals=seed % 5)
