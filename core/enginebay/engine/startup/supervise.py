"""The supervision of an engine as its config asks for it: budgets of restarts, and the sinks of its statuses."""

from __future__ import annotations

import logging

from enginebay.engine.startup.plan import Plan
from enginebay.engine.supervision import Supervision
from enginebay.errors import StartFailed
from enginebay.runtime import Runtime
from enginebay.status import open_sinks
from enginebay.status.restarts import RestartRules
from enginebay.status.statehome import next_epoch, state_home

__all__ = ["supervise"]

_log = logging.getLogger(__name__)


def supervise(plan: Plan, runtime: Runtime) -> Supervision:
    """The supervision of the engine that ``plan`` describes; it writes to its sinks from now on."""
    asked, clock = plan.config.recovery, runtime.clock
    rules = RestartRules(
        per_slot=asked.max_restarts,
        per_engine=asked.max_restarts_in_all,
        window=asked.window,
        good_run=asked.good_run,
        failed_starts=asked.failed_starts,
        longest_wait=asked.longest_wait,
    )
    name = f"{runtime.entropy.stream('engine').getrandbits(64):016x}"
    sinks = open_sinks(plan.status_sinks, engine=name, wall=lambda: clock.wall_ns() / 1e9)
    epoch = _epoch(runtime) if sinks else 0
    supervision = Supervision(runtime, sinks, rules=rules, epoch=epoch)
    supervision.start()
    return supervision


def _epoch(runtime: Runtime) -> int:
    """This run's number; without a state folder by the time of day, since no engine has to fail for its statuses."""
    try:
        return next_epoch(state_home(), runtime.clock.wall_ns() / 1e9)
    except StartFailed as error:
        _log.warning("%s", error)
        return runtime.clock.wall_ns() // 1_000_000_000
