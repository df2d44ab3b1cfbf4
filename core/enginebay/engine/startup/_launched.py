"""Worlds that a launcher has started, with an engine on every rank: where this one stands, and what cannot be kept."""

from __future__ import annotations

from typing import Any

from enginebay.config import EngineConfig
from enginebay.errors import CapabilityError
from enginebay.interfaces import ExecutorPlugin, OwnRank


def why_untimed(executor: ExecutorPlugin[Any]) -> str:
    """Why no request can end by the clock; "" where it can."""
    if not executor.capabilities.every_rank_schedules:
        return ""
    return f"executor '{executor.name}' runs one scheduler per rank, and their clocks differ"


def own_rank(config: EngineConfig, executor: ExecutorPlugin[Any]) -> OwnRank | None:
    """Which rank this process is; None where one engine has all ranks. Raises ``CapabilityError`` for what unfits."""
    if not executor.capabilities.every_rank_schedules:
        return None
    parallel = config.parallel
    asked = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    if config.deadlines.request is not None:
        untimed = why_untimed(executor)
        raise CapabilityError(
            f"[deadlines] request = {config.deadlines.request:g} cannot be kept: {untimed}; leave it out"
        )
    if executor.own_rank is None:
        if asked == 1:
            return None  # there is no other
        raise CapabilityError(
            f"executor '{executor.name}' declares every_rank_schedules, and no own_rank: its author must say which of "
            f"the {asked} ranks a process is"
        )
    own = executor.own_rank()
    if own.world_size != asked:
        raise CapabilityError(
            f"the launcher has started {own.world_size} rank{'' if own.world_size == 1 else 's'}, and [parallel] asks "
            f"for {asked} (tensor_parallel_size {parallel.tensor_parallel_size} times pipeline_parallel_size "
            f"{parallel.pipeline_parallel_size}): start as many as are asked for, or change [parallel]"
        )
    return own
