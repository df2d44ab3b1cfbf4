"""Every policy that comes with the project: the built-in ones, and the example packages that are not installed here."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from enginebay.interfaces import BatchConstraints, Propose, SchedulerLimits, SchedulerPlugin
from enginebay.kvcache import KVCacheManager
from enginebay.testing import CoreLoop, make_limits
from support.repository import ROOT

BUILT_IN = ("fair", "fcfs", "priority")
OUTSIDE = ("prefix", "sjf", "slo")
EVERY = (*BUILT_IN, *OUTSIDE)


def policy_plugin(name: str) -> SchedulerPlugin[Any]:
    """The descriptor of a policy by its name."""
    source = str(ROOT / "examples" / f"third_party_{name}_scheduler" / "src")
    if name in OUTSIDE and source not in sys.path:
        sys.path.append(source)
    [plugin] = importlib.import_module(f"enginebay_{name}.plugin").enginebay_register_schedulers()
    assert plugin.name == name
    return plugin


def policy_loop(
    name: str,
    *,
    num_blocks: int = 1000,
    block_size: int = 4,
    prefix_caching: bool = False,
    limits: SchedulerLimits | None = None,
    constraints: BatchConstraints | None = None,
    depth: int = 1,
    propose: Propose | None = None,
    **options: Any,
) -> CoreLoop:
    """A simulated core that runs this policy, with ``options`` as under ``[scheduler.options]``."""
    plugin = policy_plugin(name)
    return CoreLoop(
        plugin,
        plugin.options(**options),
        limits=limits or make_limits(max_num_batched_tokens=1000),
        constraints=constraints,
        cache=KVCacheManager(num_blocks=num_blocks, block_size=block_size, prefix_caching=prefix_caching),
        depth=depth,
        propose=propose,
    )
