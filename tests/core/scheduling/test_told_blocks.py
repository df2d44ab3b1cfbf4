"""No schedule of the mechanics is refused by a runner's table, whatever the groups of the KV cache."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.interfaces import BatchConstraints, NoOptions, Policy
from enginebay.kvcache import GroupSpec, KVCacheManager
from enginebay.scheduling import check_fits
from enginebay.testing import CoreLoop, make_limits, make_request
from enginebay.testing._sim import SimulatedRunner, mix
from enginebay.worker import ScheduledRow
from support.guesses import Guesser
from support.loop import Arrival, plugin_of
from support.schedule_policies import POLICIES

LENGTH = 48


class InGroups(SimulatedRunner):
    """The simulated device with several groups. Its memory is that of one, so what stands in it is not looked at."""

    def _owners(self) -> dict[int, int]:
        return {}

    def _write(self, scheduled: ScheduledRow, owners: dict[int, int]) -> None:
        pass

    def _verify(self, scheduled: ScheduledRow, end: int) -> int:
        row, fingerprint = scheduled.row, self.roots[scheduled.row.request_id]
        for token in row.token_ids[:end]:
            fingerprint = mix(fingerprint, token)
        return fingerprint


def play(policy: type[Policy[NoOptions]], seed: int) -> CoreLoop:
    """A random load, over a cache that is small for it, of groups that ``seed`` decides."""
    draw = Random(seed)
    size = draw.choice([1, 2, 4, 5])
    windows = draw.choice([[None], [None, 6], [None, 3, 13], [size], [9, None], [1, None]])
    groups = [GroupSpec(size) if w is None else GroupSpec(size, "sliding_window", w) for w in windows]
    depth, budget, proposals = draw.choice([1, 2, 3]), draw.choice([8, 17, 64]), draw.choice([0, 0, 4])
    cache = KVCacheManager(
        num_blocks=len(groups) * -(-LENGTH // size) + 1 + draw.randrange(20),
        block_size=size,
        groups=groups,
        prefix_caching=draw.random() < 0.85,
        max_step_tokens=draw.choice([None, (budget + 8) * depth]),
    )
    limits = make_limits(
        max_num_seqs=draw.choice([1, 3, 8]), max_num_batched_tokens=budget, max_model_len=LENGTH, chunked_prefill=True
    )
    guesser = Guesser(right=0.6, seed=seed)
    loop = CoreLoop(
        plugin_of(policy),
        NoOptions(),
        limits=limits,
        constraints=BatchConstraints(max_tokens_per_step=1 + proposals),
        cache=cache,
        depth=depth,
        check=False,
        propose=guesser if proposals else None,
    )
    guesser.loop = loop
    num_blocks = cache.num_blocks + cache.shape.reserved(0)
    loop.runner = InGroups(num_blocks=num_blocks, block_size=size)
    told = windows if draw.random() < 0.7 else None
    loop.runner.table.limit_blocks(num_blocks, [size] * len(groups), told)
    beginnings = [tuple(draw.randrange(50) for _ in range(LENGTH)) for _ in range(3)]
    made = 0
    for _ in range(100):
        while draw.random() < 0.35:
            length, max_tokens = draw.randrange(1, LENGTH - 12), draw.randrange(1, 12)
            same = draw.randrange(length + 1)
            prompt = draw.choice(beginnings)[:same] + tuple(draw.randrange(50) for _ in range(length - same))
            check_fits(length, max_tokens, limits, cache)
            who = {"priority": draw.randrange(3), "tenant": "ab"[made % 2]}
            loop.add(make_request(made, prompt, max_tokens=max_tokens, **who))
            made += 1
        if draw.random() < 0.1 and made:
            loop.abort(f"r{draw.randrange(made)}")
        loop.step()
    loop.run()
    return loop


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_what_the_mechanics_say_of_blocks_is_never_refused(policy: type[Policy[NoOptions]], seed: int) -> None:
    play(policy, seed)


def test_the_loads_come_to_what_could_be_refused() -> None:
    loops = [play(Arrival, seed) for seed in range(20)]
    assert sum(loop.preemptions for loop in loops) > 50
    assert sum(loop.cache.prefix_hits for loop in loops) > 200
    assert sum(loop.cache.evictions for loop in loops) > 50
    assert 0 < sum(loop.num_accepted for loop in loops) < sum(loop.num_proposed for loop in loops)
