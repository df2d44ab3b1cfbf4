"""Random loads under random constraints with policies that answer at random, or against all sense."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.interfaces import NoOptions, Policy
from enginebay.testing import CoreLoop, random_load
from support.guesses import Guesser, with_choices_and_shapes
from support.loop import Arrival, play, plugin_of
from support.schedule_policies import POLICIES
from support.schedule_watch import watch


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 32), depth=st.sampled_from([1, 2, 3]), num_stages=st.integers(1, 4))
def test_every_request_ends_once_within_all_bounds(  # S11, S17
    policy: type[Policy[NoOptions]], seed: int, depth: int, num_stages: int
) -> None:
    play(policy, random_load(seed, num_requests=25), depth=depth, num_stages=num_stages)


def play_watched(
    policy: type[Policy[NoOptions]], seed: int, *, depth: int, proposals: int, num_stages: int = 1
) -> CoreLoop:
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
        num_stages=num_stages,
    )
    guesser.loop = loop
    books = watch(loop)
    loop.run_load(load)
    books.quiet()
    return loop


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    depth=st.sampled_from([1, 2, 3]),
    proposals=st.integers(0, 4),
    num_stages=st.integers(1, 4),
)
def test_the_books_agree_at_every_step(  # S13, S14
    policy: type[Policy[NoOptions]], seed: int, depth: int, proposals: int, num_stages: int
) -> None:
    play_watched(policy, seed, depth=depth, proposals=proposals, num_stages=num_stages)


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
            for num_stages in {1, depth}:
                play(policy, random_load(seed, num_requests=60), depth=depth, num_stages=num_stages)
                play_watched(policy, seed, depth=depth, proposals=seed % 5, num_stages=num_stages)
