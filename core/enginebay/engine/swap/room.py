"""Whether the workers of two plans have room beside each other. Pure arithmetic; what is not known has none."""

from __future__ import annotations

from typing import Final

from enginebay.engine.startup.plan import Plan
from enginebay.engine.startup.standing import Standing

__all__ = ["no_room"]

_SPARE: Final = 256 << 20
"""Bytes for each worker beside weights and KV cache, which the machine must keep."""


def no_room(now: Plan, then: Plan, standing: Standing, available: int) -> str:
    """Why the workers of ``now``, which ``standing`` tells of, have to go first; "": both fit.

    ``available``: bytes of this machine's memory that can be had now.
    """
    if now.executor.plugin.capabilities.multi_node or then.executor.plugin.capabilities.multi_node:
        return "the memory of other machines is not known"
    if any(not ready.worker.device.startswith("cpu") for ready in standing.workers.devices):
        return "on an accelerator the KV cache has what was free"
    asked = then.config.cache
    if asked.num_blocks is None and asked.memory_bytes is None:
        return "the KV cache takes what is free: neither [cache] num_blocks nor memory_bytes is set"
    weights = sum(model.weight_bytes for model in standing.workers.models)
    ranks = len(then.world.own_places)
    if asked.memory_bytes is not None:
        cache = asked.memory_bytes * ranks
    else:
        cache = standing.budget.num_blocks * sum(m.kv_cache_spec.cost_per_block for m in standing.workers.models)
    needed = weights + cache + _SPARE * ranks
    if needed > available:
        return f"weights and KV cache would need {needed:,} bytes more, and {available:,} can be had"
    return ""
