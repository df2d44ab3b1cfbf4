"""A stranger's policy overlaps with execution exactly as the built-in one does: the same batches are in flight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from enginebay.interfaces import NoOptions, Scheduler, SchedulerContext
from enginebay.messages import SchedulerOutput
from enginebay.scheduling import MechanicsScheduler
from support.fake_engine import FakeEngine
from support.policies import BUILT_IN, OUTSIDE, policy_plugin
from support.repository import ROOT

Event = tuple[str, int, tuple[tuple[str, int], ...]]


def events(name: str, depth: int) -> list[Event]:
    """What the executor was given and what was committed, in order, of 12 requests that differ in arrival alone."""
    plugin = policy_plugin(name)
    seen: list[Event] = []

    def scheduler(context: SchedulerContext[NoOptions]) -> Scheduler[NoOptions]:
        own = replace(context, options=plugin.options())
        policy = plugin.factory(own)
        assert not isinstance(policy, Scheduler)
        return MechanicsScheduler(policy, own)

    engine = FakeEngine(scheduler=scheduler, depth=depth, num_blocks=24, max_num_batched_tokens=24)

    def given(output: SchedulerOutput) -> None:
        seen.append(("given", output.step, tuple(output.num_scheduled_tokens.items())))

    engine.executor.before = given
    for number in range(12):
        engine.add(f"r{number}", f"a prompt {number:02}", max_tokens=9, ignore_eos=True)
    while engine.core.has_work():
        committed = len(engine.hooks.steps)
        engine.step()
        seen += [("committed", report.step, ()) for report in engine.hooks.steps[committed:]]
    assert len(engine.last) == 12
    return seen


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", [*OUTSIDE, *BUILT_IN])
def test_the_same_batches_are_in_flight(name: str, depth: int) -> None:  # P10
    seen, built_in = events(name, depth), events("fcfs", depth)
    assert seen == built_in
    most = running = 0
    for what, *_ in seen:
        running += 1 if what == "given" else -1
        most = max(most, running)
    assert (most, running) == (depth, 0)


def test_such_a_policy_is_short() -> None:  # P10
    for name in OUTSIDE:
        source = (ROOT / f"examples/third_party_{name}_scheduler/src/enginebay_{name}/policy.py").read_text()
        assert len([line for line in source.splitlines() if line.strip()]) <= 60, name
