"""A group of one worker without sinks, as a core is given it, and rules of restarts that never end one."""

from __future__ import annotations

from typing import Any

from enginebay.engine.roster import Roster, slots_of
from enginebay.engine.supervision import Supervision
from enginebay.messages import Phase, WorldPlan
from enginebay.runtime import Runtime
from enginebay.status.restarts import RestartRules

__all__ = ["FOR_EVER", "a_roster", "rosters_of"]

FOR_EVER = RestartRules(per_slot=10_000, per_engine=10_000, failed_starts=10_000, longest_wait=0.0)


def a_roster(runtime: Runtime, rules: RestartRules = FOR_EVER, **supervision: Any) -> Roster:
    """Of one worker, which is ready."""
    return rosters_of(runtime, 1, rules, **supervision)[0]


def rosters_of(runtime: Runtime, count: int, rules: RestartRules = FOR_EVER, **supervision: Any) -> list[Roster]:
    """Those of so many groups of one engine, each of one worker, which is ready."""
    made = Supervision(runtime, {}, rules=rules, **supervision)
    rosters = []
    for group in range(count):
        world = WorldPlan(data_parallel_size=count, data_parallel_index=group)
        rosters.append(Roster(made, slots_of(world, "cpu"), runtime.entropy))
        rosters[-1].renew(0)
        rosters[-1].enter(Phase.READY)
    return rosters
