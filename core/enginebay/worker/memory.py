"""The memory budget: snapshots from a device, and the arithmetic of what may be taken, apart from any device."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from typing import Final

from enginebay.config import CacheConfig
from enginebay.errors import OutOfMemory
from enginebay.interfaces import Device
from enginebay.messages import KVCacheSpec, MemorySnapshot

DEFAULT_UTILIZATION: Final = 0.9
"""Share of an accelerator that is taken when ``[cache]`` says nothing."""

CPU_SHARE: Final = Fraction(1, 4)
"""Share of the free host memory that the cache may take when ``[cache]`` says nothing."""


def snapshot(device: Device) -> MemorySnapshot:
    """The current device's memory now; the timestamp is monotonic seconds."""
    memory = device.memory()
    return MemorySnapshot(
        device=device.name(),
        timestamp=time.monotonic(),
        total=memory.total,
        free=memory.free,
        allocated=memory.allocated,
        reserved=memory.reserved,
        peak=memory.peak,
        process=memory.process,
    )


def utilization_in_force(cache: CacheConfig, kind: str) -> float | None:
    """The share of the device that is asked for; None when the cache's size is given by other means."""
    if cache.memory_utilization is not None:
        return cache.memory_utilization
    if kind == "cpu" or cache.memory_bytes is not None or cache.num_blocks is not None:
        return None
    return DEFAULT_UTILIZATION


def request_memory(*, total: int, free: int, utilization: float, device: str) -> int:
    """``ceil(total * utilization)`` bytes; raises ``OutOfMemory`` with all the terms when less than that is free."""
    # the decimal that the user wrote, not its binary neighbour: ceil must not add a byte to 0.9 of 10 GB
    requested = math.ceil(total * Fraction(repr(utilization)))
    if free < requested:
        raise OutOfMemory(
            f"{device} has {human(free)} free of {human(total)}, and memory_utilization {utilization:g} asks for "
            f"{human(requested)}: lower [cache] memory_utilization below {_floor(free / total)}, or end what else "
            f"holds memory on {device} ({human(total - free)})"
        )
    return requested


def cache_bytes_by_utilization(
    *, requested: int, before: MemorySnapshot, after: MemorySnapshot, utilization: float
) -> int:
    """Bytes left on an accelerator: requested, less growth outside the allocator, less the allocator's peak.

    ``before`` was taken before the model was loaded, ``after`` when the largest step had run. Memory that others gave
    back in between is not ours to take (growth counts from 0), and memory that is not free cannot be taken.
    Raises ``OutOfMemory`` with all the terms.
    """
    growth = max(0, after.non_torch - before.non_torch)
    left = min(requested - growth - after.peak, after.free + after.reserved - after.allocated)
    if left <= 0:
        raise OutOfMemory(
            f"nothing is left for the KV cache on {after.device}: memory_utilization {utilization:g} of "
            f"{human(after.total)} is {human(requested)}; the model and its largest step take {human(after.peak)}, "
            f"libraries and others took {human(growth)} since the start, and {human(after.free)} are free: raise "
            "[cache] memory_utilization, or lower [scheduler] max_num_batched_tokens"
        )
    return left


def cache_bytes_by_share_of_host(*, requested: int, after: MemorySnapshot, utilization: float) -> int:
    """Bytes left on a CPU: requested, less what this process holds at its peak; no more than is free."""
    held = max(after.process, after.peak)
    left = min(requested - held, after.free)
    if left <= 0:
        raise OutOfMemory(
            f"nothing is left for the KV cache on {after.device}: memory_utilization {utilization:g} of "
            f"{human(after.total)} is {human(requested)}, this process holds {human(held)} with the model, and "
            f"{human(after.free)} are free: raise [cache] memory_utilization, or set [cache] memory_bytes"
        )
    return left


def cache_bytes_given(*, wanted: int, key: str, after: MemorySnapshot) -> int:
    """Bytes that the config names itself (``key`` and its value); raises ``OutOfMemory`` when they are not free."""
    if wanted > after.free:
        raise OutOfMemory(
            f"[cache] {key} needs {human(wanted)} for the KV cache, and {after.device} has {human(after.free)} free of "
            f"{human(after.total)} with the model loaded: lower it, or free memory on {after.device}"
        )
    return wanted


def cache_bytes_unset(after: MemorySnapshot) -> int:
    """A quarter of what is free on a CPU; the engine caps it at what its longest requests can use."""
    return int(after.free * CPU_SHARE)


def cache_bytes(
    cache: CacheConfig,
    spec: KVCacheSpec,
    *,
    kind: str,
    requested: int,
    before: MemorySnapshot,
    after: MemorySnapshot,
) -> int:
    """Bytes that the KV cache may take on this rank, by whichever way of saying it is in force.

    In this order: blocks fixed by the runner, ``num_blocks``, ``memory_bytes``, a share of the device, a CPU's default.
    """
    utilization = utilization_in_force(cache, kind)
    if spec.num_blocks is not None:
        key = f"num_blocks = {spec.num_blocks} (fixed by the runner)"
        return cache_bytes_given(wanted=spec.num_blocks * spec.cost_per_block, key=key, after=after)
    if cache.num_blocks is not None:
        key = f"num_blocks = {cache.num_blocks}"
        return cache_bytes_given(wanted=cache.num_blocks * spec.cost_per_block, key=key, after=after)
    if cache.memory_bytes is not None:
        return cache_bytes_given(wanted=cache.memory_bytes, key=f"memory_bytes = {cache.memory_bytes}", after=after)
    if utilization is None:
        return cache_bytes_unset(after)
    if kind == "cpu":
        return cache_bytes_by_share_of_host(requested=requested, after=after, utilization=utilization)
    return cache_bytes_by_utilization(requested=requested, before=before, after=after, utilization=utilization)


def requested_bytes(cache: CacheConfig, baseline: MemorySnapshot, kind: str) -> int:
    """Bytes that the config asks for before anything is loaded; raises ``OutOfMemory`` when a share is not free.

    0 when ``num_blocks`` is given: what a block costs is known after the model is loaded.
    """
    utilization = utilization_in_force(cache, kind)
    if utilization is not None:
        return request_memory(total=baseline.total, free=baseline.free, utilization=utilization, device=baseline.device)
    if cache.memory_bytes is not None:
        return cache.memory_bytes
    return 0 if cache.num_blocks is not None else cache_bytes_unset(baseline)


def human(size: int) -> str:
    """``1.5 GiB``, ``200.0 MiB``, ``512 bytes``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(size) >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _floor(share: float) -> str:
    return f"{math.floor(share * 100) / 100:.2f}"
