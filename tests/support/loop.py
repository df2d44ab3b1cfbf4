"""The conformance kit's simulated core, with short ways to make one around a policy written in a test."""

from __future__ import annotations

from typing import Any

from enginebay.interfaces import (
    BatchConstraints,
    NoOptions,
    Policy,
    Propose,
    RequestView,
    SchedulerLimits,
    SchedulerPlugin,
)
from enginebay.kvcache import KVCacheManager
from enginebay.messages import SchedulerOutput
from enginebay.testing import CoreLoop, Load, make_limits

__all__ = ["Arrival", "loop_of", "play", "plugin_of", "scheduled"]


class Arrival(Policy[NoOptions]):
    """Order of arrival, the last one gives way."""

    def key(self, request: RequestView) -> tuple[Any, ...]:
        return (request.arrival_number,)


def plugin_of(policy: type[Policy[NoOptions]]) -> SchedulerPlugin[NoOptions]:
    """A descriptor of a policy that has no options."""
    return SchedulerPlugin(name="under test", options=NoOptions, factory=policy)


def loop_of(
    policy: type[Policy[NoOptions]] = Arrival,
    *,
    num_blocks: int = 1000,
    block_size: int = 4,
    prefix_caching: bool = True,
    limits: SchedulerLimits | None = None,
    constraints: BatchConstraints | None = None,
    depth: int = 1,
    propose: Propose | None = None,
    num_stages: int = 1,
) -> CoreLoop:
    """A simulated core; ``num_blocks`` counts those that requests can hold."""
    constraints = constraints or BatchConstraints()
    cache = KVCacheManager(
        num_blocks=num_blocks + constraints.reserved_blocks,
        block_size=block_size,
        prefix_caching=prefix_caching,
        reserved_blocks=constraints.reserved_blocks,
    )
    limits = limits or make_limits(max_num_batched_tokens=1000)
    return CoreLoop(
        plugin_of(policy),
        NoOptions(),
        limits=limits,
        constraints=constraints,
        cache=cache,
        depth=depth,
        propose=propose,
        num_stages=num_stages,
    )


def play(policy: type[Policy[NoOptions]], load: Load, *, depth: int = 1, num_stages: int = 1) -> CoreLoop:
    """A random load from its first step to a quiet end."""
    loop = CoreLoop(
        plugin_of(policy),
        NoOptions(),
        limits=load.limits,
        constraints=load.constraints,
        cache=load.cache(),
        depth=depth,
        num_stages=num_stages,
    )
    loop.run_load(load)
    return loop


def scheduled(output: SchedulerOutput) -> dict[str, int]:
    """Tokens per request, in batch order."""
    return dict(output.num_scheduled_tokens)
