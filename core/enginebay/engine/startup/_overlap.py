"""Whether steps overlap, and how many are in flight: from what is asked, and what the parts can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from enginebay.config import EngineConfig, Resolved
from enginebay.engine.startup._settle import InForce, Settled
from enginebay.errors import CapabilityError
from enginebay.interfaces import BatchConstraints, ExecutorPlugin, SchedulerPlugin
from enginebay.plugins import Loaded
from enginebay.scheduling import is_policy

__all__ = ["busy_stages", "can_overlap", "settle_overlap"]

_KEY: Final = "scheduler.overlap"


def can_overlap(scheduler: Loaded[SchedulerPlugin[Any]], settled: Settled, constraints: BatchConstraints) -> bool:
    """Whether the scheduler can draw up a step before the last one's tokens are known.

    A policy can, by the mechanics. Which of the two tiers a plugin is shows in what its factory returns, so one that
    declares nothing is made once, over a small cache, and dropped.
    """
    if scheduler.plugin.capabilities.overlap_safe:
        return True
    return is_policy(
        scheduler.plugin,
        scheduler.options,
        limits=settled.limits,
        constraints=constraints,
        block_size=settled.block_size,
        prefix_caching=settled.prefix_caching,
    )


def settle_overlap(
    resolved: Resolved, executor: ExecutorPlugin[Any], *, scheduler: str, safe: Callable[[], bool]
) -> tuple[int, InForce]:
    """How many steps may be in flight, and why.

    ``scheduler`` is its name; ``safe`` says whether it can schedule a step before the last one's tokens are known, and
    is asked when nothing else speaks against it. Pipeline stages have work at the same time only when there is a step
    for each of them, and one more is on its way.
    Raises ``CapabilityError`` when overlap is asked for, and a part cannot do it.
    """
    config = resolved.config
    asked, stages, most = config.scheduler.overlap, config.parallel.pipeline_parallel_size, executor.capabilities
    if asked is False:
        return 1, InForce("overlap", "off", resolved.origin(_KEY))
    cannot = None
    if most.max_in_flight < 2:
        cannot = f"executor '{executor.name}' takes one step at a time"
    elif not safe():
        cannot = f"scheduler '{scheduler}' is a whole one, and does not declare overlap_safe"
    if cannot is not None:
        if asked is True:
            raise CapabilityError(
                f"[scheduler] overlap = true ({resolved.origin(_KEY)}): {cannot}: leave it out, or set it to false."
            )
        return 1, InForce("overlap", "off", cannot)
    depth = min(most.max_in_flight, stages + 1)
    why = resolved.origin(_KEY) if asked is True else "default"
    if stages > 1:
        why += f"; {stages} pipeline stages, and executor '{executor.name}' takes {most.max_in_flight} steps"
    return depth, InForce("overlap", "on", f"{depth} steps in flight; {why}")


def busy_stages(config: EngineConfig, depth: int) -> int:
    """How many pipeline stages can work at the same time, each on one of the ``depth`` steps that may be in flight."""
    return min(config.parallel.pipeline_parallel_size, depth)
