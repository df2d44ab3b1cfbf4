"""Which of the two tiers a scheduler plugin is of: that shows in what its factory returns, and nowhere before."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from enginebay.interfaces import BatchConstraints, Options, SchedulerLimits, SchedulerPlugin
from enginebay.kvcache import KVCacheManager
from enginebay.scheduling._build import make_scheduler
from enginebay.scheduling._mechanics import MechanicsScheduler

O = TypeVar("O", bound=Options)

_BLOCKS: Final = 64


def is_policy(
    plugin: SchedulerPlugin[O],
    options: O,
    *,
    limits: SchedulerLimits,
    constraints: BatchConstraints | None = None,
    block_size: int = 16,
    prefix_caching: bool = True,
) -> bool:
    """Whether the plugin is a policy: one is made over a small cache, and dropped. Raises what making it raises."""
    bounds = constraints or BatchConstraints()
    made: Any = make_scheduler(
        plugin,
        options,
        limits=limits,
        constraints=bounds,
        kv_cache=KVCacheManager(
            num_blocks=_BLOCKS + bounds.reserved_blocks,
            block_size=block_size,
            prefix_caching=prefix_caching,
            reserved_blocks=bounds.reserved_blocks,
        ),
        now=lambda: 0.0,
    )
    return isinstance(made, MechanicsScheduler)
