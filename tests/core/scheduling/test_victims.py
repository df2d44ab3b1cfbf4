"""Nobody loses what it has computed unless somebody gets what it needs for it, at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from enginebay.interfaces import NoOptions, Policy, PolicyState, RequestView, SchedulerContext
from enginebay.kvcache import KVCacheManager, PrefixHit
from enginebay.scheduling import _admission, _passes
from enginebay.scheduling._eviction import make_room
from enginebay.scheduling._record import Record
from enginebay.scheduling._state import State
from enginebay.scheduling._victims import Victims
from enginebay.testing import make_limits, make_request, random_load
from support.loop import Arrival, loop_of, play, scheduled
from support.policies import policy_loop
from support.schedule_policies import POLICIES


class Useful:
    """Watches what the mechanics ask others to give way for."""

    def __init__(self) -> None:
        self.preempted = 0
        self._start, self._make_room = _admission._start, make_room

    def start(self, state: State, *rest: Any) -> bool:
        """Whoever gives way to one that waits makes it start."""
        before = state.num_preemptions
        started = self._start(state, *rest)
        assert started or state.num_preemptions == before, "one gave way, and the other did not start"
        self.preempted += state.num_preemptions - before
        return started

    def make_room(self, state: State, record: Record, *rest: Any) -> bool:
        """Whoever gives way to one that runs makes it get its blocks, or it gives way itself and nobody else."""
        before, own = state.num_preemptions, record.num_preemptions
        got = self._make_room(state, record, *rest)
        lost = state.num_preemptions - before
        assert got or lost == record.num_preemptions - own <= 1, "one gave way, and the other got no blocks"
        self.preempted += lost
        return got

    @classmethod
    def play(cls, policy: type[Policy[NoOptions]], seed: int, depth: int) -> int:
        """A random load; how many gave way."""
        with pytest.MonkeyPatch.context() as patch:
            useful = cls()
            patch.setattr(_admission, "_start", useful.start)
            patch.setattr(_passes, "make_room", useful.make_room)  # where it is called
            play(policy, random_load(seed, num_requests=30), depth=depth)
        return useful.preempted


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@settings(max_examples=10, deadline=None)
@example(seed=343, depth=3)  # steps of nothing between those of prompts, while who is to give way stands still
@given(seed=st.integers(0, 1 << 32), depth=st.sampled_from([1, 2, 3]))
def test_nobody_gives_way_for_nothing(policy: type[Policy[NoOptions]], seed: int, depth: int) -> None:
    Useful.play(policy, seed, depth)


def test_there_is_something_to_watch() -> None:
    assert sum(Useful.play(policy, seed, 1) for policy in POLICIES for seed in range(4)) > 30


def test_those_that_would_give_way_are_too_few() -> None:  # S12
    loop = policy_loop("priority", num_blocks=20)
    loop.add(make_request(0, 40, max_tokens=20, priority=0), make_request(1, 12, max_tokens=8, priority=5))
    for _ in range(3):
        loop.step()
    loop.add(make_request(2, 60, max_tokens=4, priority=0))  # 15 blocks: r1 has 4 and 5 are free, r0 is as urgent
    while "r1" not in loop.finished:
        assert list(scheduled(loop.step())) == ["r0", "r1"]
    loop.run()
    assert loop.preemptions == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_those_that_are_enough_give_way_in_the_same_step(depth: int) -> None:  # S12, S13
    loop = policy_loop("priority", num_blocks=12, depth=depth)
    loop.add(*(make_request(number, 14, max_tokens=2, priority=5 + number) for number in range(3)))
    loop.step()
    loop.add(make_request(3, 30, max_tokens=2, priority=0))  # 8 blocks: two of the three
    steps = [loop.step() for _ in range(depth)]
    assert [step.preempted for step in steps] == [()] * (depth - 1) + [("r2", "r1")]
    assert "r3" in scheduled(steps[-1])
    loop.run()


class Asked(Arrival):
    """Everybody gives way to who waits, and ``admit`` says no while it is shown fewer than ``least`` free blocks."""

    may_overtake_preempted = True
    preempts_running = True
    least = 0

    def __init__(self, context: SchedulerContext[NoOptions]) -> None:
        super().__init__(context)
        self.seen: list[tuple[PolicyState, int]] = []

    def key(self, request: RequestView) -> tuple[int]:
        return (request.priority,)

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        return 0 if candidates[0].priority > needed.priority else None

    def admit(self, request: RequestView, state: PolicyState) -> bool:
        self.seen.append((state, self.context.kv.num_free_blocks))
        return state.num_free_blocks >= self.least


@pytest.mark.parametrize(("least", "preempted", "runs"), [(10, ("r0",), "r1"), (11, (), "r0")])
def test_admit_is_asked_before_anybody_gives_way(least: int, preempted: tuple[str, ...], runs: str) -> None:
    loop = loop_of(Asked, num_blocks=10, prefix_caching=False, limits=make_limits(max_num_seqs=1))
    policy: Asked = loop.scheduler._state.door._policy  # type: ignore[attr-defined]  # what it was shown is the point
    loop.add(make_request(0, 8, priority=5, max_tokens=9))
    loop.step()
    policy.least = least
    loop.add(make_request(1, 8, priority=0, max_tokens=1))
    output = loop.step()
    assert (output.preempted, list(scheduled(output))) == (preempted, [runs])
    state, free = policy.seen[-1]
    assert (state.num_running, state.num_free_blocks, state.num_waiting) == (0, 10, 2)
    assert free == 7
    policy.least = 0
    loop.run()


@settings(max_examples=100, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=5),
    chosen=st.sets(st.integers(0, 4)),
    starts=st.lists(st.integers(0, 1), min_size=1, max_size=12),
)
def test_what_comes_free_is_known_before(prompts: list[list[int]], chosen: set[int], starts: list[int]) -> None:
    """Blocks that several hold, or that the one who starts is to find, are counted as they will be."""
    kv = KVCacheManager(num_blocks=100, block_size=2)
    records = []
    for number, prompt in enumerate(prompts):
        record = Record(make_request(number, tuple(prompt)), number, 100)
        record.sequence = kv.open(record.request_id, tuple(prompt), record.output)
        kv.allocate(record.sequence, kv.lookup(record.sequence), len(prompt))
        kv.publish(record.sequence, len(prompt))
        records.append(record)
    waiting = kv.open("waiting", tuple(starts), [])
    hit = kv.lookup(waiting)
    room = kv.num_free_blocks - hit.num_idle
    victims, all_of_them = Victims(kv, hit), Victims(kv, PrefixHit())
    for number in sorted(chosen & set(range(len(records)))):
        victims.add(records[number])
        all_of_them.add(records[number])
    before = kv.num_free_blocks
    for record in victims:
        kv.free(record.sequence)
    after = kv.lookup(waiting)
    assert (after.block_ids, kv.num_free_blocks) == (hit.block_ids, before + all_of_them.freed)
    assert kv.num_free_blocks - after.num_idle == room + victims.freed
