"""A group of one worker without sinks, as a core is given it, and rules of restarts that never end one."""

from __future__ import annotations

from typing import Any

from enginebay.engine.roster import Roster, slots_of
from enginebay.engine.supervision import Supervision
from enginebay.messages import Phase, WorldPlan
from enginebay.runtime import Runtime
from enginebay.status.restarts import RestartRules

__all__ = ["FOR_EVER", "a_roster"]

FOR_EVER = RestartRules(per_slot=10_000, per_engine=10_000, failed_starts=10_000, longest_wait=0.0)


def a_roster(runtime: Runtime, rules: RestartRules = FOR_EVER, **supervision: Any) -> Roster:
    """Of one worker, which is ready."""
    made = Supervision(runtime, {}, rules=rules, **supervision)
    roster = Roster(made, slots_of(WorldPlan(), "cpu"), runtime.entropy)
    roster.renew(0)
    roster.enter(Phase.READY)
    return roster
