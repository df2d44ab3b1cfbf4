"""The bound on how often a request is overtaken: it holds for each of them, whoever comes, gives way or ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.interfaces import NoOptions, Policy, RequestView
from enginebay.messages import SchedulerOutput
from enginebay.scheduling import _line
from enginebay.scheduling._overtaking import Overtaking
from enginebay.scheduling._record import Record
from enginebay.testing import CoreLoop, Load, make_limits, make_request, random_load
from support.loop import Arrival, loop_of, plugin_of, scheduled
from support.policies import EVERY, policy_loop, policy_plugin
from support.schedule_policies import POLICIES

EVENTS = st.lists(st.tuples(st.sampled_from(["enter", "enter", "start", "end"]), st.integers(0, 1 << 20)), max_size=80)


@settings(max_examples=120, deadline=None)
@given(events=EVENTS)
def test_it_counts_what_one_count_for_each_would(events: list[tuple[str, int]]) -> None:
    """Against a line in which each start is written down at all that it overtakes."""
    overtaking, line = Overtaking(), list[list[Any]]()
    for number, (what, which) in enumerate(events, start=1):
        if what == "enter":
            record = Record(make_request(number), number, 100)
            overtaking.enter(number, record)
            line.append([number, record, 0])
        elif line:
            at = which % len(line)
            ticket, *_ = line.pop(at)
            overtaking.leave(ticket, started=what == "start")
            for one in line[:at]:
                one[2] += what == "start"
        overtaking.leave(number + 1, started=True)  # one that never stood there
        assert len(overtaking) == len(line)
        assert overtaking.most == max((count for *_, count in line), default=0)
        if line:
            assert overtaking.first is line[0][1]
    for ticket, _, count in line:
        assert overtaking.most == count  # each in its turn is the first, with its own count
        overtaking.leave(ticket, started=True)


class Counting(CoreLoop):
    """Counts from outside, for each request that waits, who began to wait in a later step and started in an earlier."""

    def __init__(self, *args: Any, counts_resumed: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.since, self.overtaken, self.most = dict[str, int](), dict[str, int](), 0
        self.counts_resumed = counts_resumed

    def _execute(self, output: SchedulerOutput) -> None:
        super()._execute(output)
        started = [new.request_id for new in output.new]
        resumed = [row.request_id for row in output.resumed]
        waiting = [one for one in self.unfinished if one in self.overtaken or one not in self.since]
        for one in waiting:
            self.since.setdefault(one, self.steps)
            self.overtaken.setdefault(one, 0)
        began = [self.since[one] for one in (*started, *(resumed if self.counts_resumed else ())) if one in self.since]
        for one in (*started, *resumed):
            self.overtaken.pop(one, None)
        for one in waiting:
            if one in self.overtaken:
                self.overtaken[one] += sum(since > self.since[one] for since in began)
                self.most = max(self.most, self.overtaken[one])
        for one in output.preempted:
            if self.counts_resumed:  # else it waits before all the others
                self.since[one], self.overtaken[one] = self.steps, 0


def counted(policy: type[Policy[NoOptions]], load: Load, *, depth: int, bound: int) -> int:
    """The most that anybody was overtaken."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_line, "STARVATION_BOUND", bound)
        loop = Counting(
            plugin_of(policy),
            NoOptions(),
            limits=load.limits,
            constraints=load.constraints,
            cache=load.cache(),
            depth=depth,
            counts_resumed=policy.may_overtake_preempted,
        )
        loop.run_load(load)
    return loop.most


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32), depth=st.sampled_from([1, 2, 3]), bound=st.integers(1, 6))
def test_nobody_is_overtaken_more_often_than_the_bound(
    policy: type[Policy[NoOptions]], seed: int, depth: int, bound: int
) -> None:
    assert counted(policy, random_load(seed, num_requests=30), depth=depth, bound=bound) <= bound


def test_without_the_bound_they_would_be() -> None:
    most = [
        max(counted(policy, random_load(seed, num_requests=30), depth=1, bound=1 << 60) for seed in range(3))
        for policy in POLICIES
        if policy is not Arrival
    ]
    assert min(most) > 6


class NewestFirst(Arrival):
    def key(self, request: RequestView) -> tuple[int]:
        return (-request.arrival_number,)


@pytest.mark.parametrize("waiting", [1, 5, 40])
def test_all_that_wait_go_after_the_same_thousand(waiting: int) -> None:
    """Each has its own count, from the moment it came: they do not wait a thousand starts for one another."""
    loop = loop_of(NewestFirst, limits=make_limits(max_num_seqs=1))
    loop.add(*(make_request(number, 4, max_tokens=1) for number in range(waiting)))
    started: list[int] = []
    for number in range(waiting, _line.STARVATION_BOUND + 2 * waiting):
        loop.add(make_request(number, 4, max_tokens=1))
        started += [int(new.request_id[1:]) for new in loop.step().new]
    assert started == [*range(waiting, _line.STARVATION_BOUND + waiting), *range(waiting)]
    loop.abort(*loop.requests)
    loop.run()


def test_who_gives_way_again_and_again_does_not_wait_longer_than_others() -> None:
    """One seat; urgent ones come whenever someone less urgent runs, and each time it goes back to the line."""
    loop = policy_loop("priority", limits=make_limits(max_num_seqs=1, max_num_batched_tokens=1000, max_model_len=256))
    loop.add(make_request(0, 8, max_tokens=40, priority=5))
    loop.step()
    loop.add(make_request(1, 8, max_tokens=2, priority=9))
    middle, number, starts, ran = 0, 2, 0, {"r0": 1}
    while not loop.output["r1"]:
        if f"r{middle}" in loop.finished:
            middle = number
            loop.add(make_request(number, 8, max_tokens=40, priority=5))
            number += 1
        elif f"r{middle}" in ran:
            loop.add(make_request(number, 4, max_tokens=1, priority=0))
            number += 1
        output = loop.step()
        ran = scheduled(output)
        starts += len(output.new) + len(output.resumed)
        assert starts <= _line.STARVATION_BOUND + 1
    assert loop.preemptions > 400
    loop.abort(*loop.requests)
    loop.run()


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1 << 32), bound=st.integers(1, 6))
def test_so_it_is_with_every_policy_that_comes_along(name: str, seed: int, bound: int) -> None:
    plugin, load = policy_plugin(name), random_load(seed, num_requests=30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_line, "STARVATION_BOUND", bound)
        loop = Counting(
            plugin,
            plugin.options(),
            limits=load.limits,
            constraints=load.constraints,
            cache=load.cache(),
            counts_resumed=name in ("priority", "slo"),
        )
        loop.run_load(load)
    assert loop.most <= bound
