"""The memory budget: pure arithmetic, and its messages."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config import CacheConfig
from enginebay.errors import OutOfMemory
from enginebay.messages import DeviceMemory, KVCacheGroup, KVCacheSpec, MemorySnapshot
from enginebay.worker import memory
from support.scripted_device import GIB, ScriptedDevice

MIB = 1 << 20


def snap(**fields: int) -> MemorySnapshot:
    values = {"total": 10 * GIB, "free": 10 * GIB, "allocated": 0, "reserved": 0, "peak": 0, "process": 0, **fields}
    return MemorySnapshot(device="cuda:0", timestamp=0.0, **values)


@pytest.mark.parametrize(
    ("total", "free", "utilization", "expected"),
    [
        (100, 100, 0.9, 90),
        (101, 101, 0.9, 91),  # 90.9, rounded up
        (10, 10, 0.31, 4),
        (10 * 10**9, 10 * 10**9, 0.9, 9 * 10**9),  # not one byte more for 0.9 being no binary fraction
        (1000, 1000, 1.0, 1000),
        (1000, 500, 0.5, 500),  # exactly what is free
    ],
)
def test_request(total: int, free: int, utilization: float, expected: int) -> None:
    assert memory.request_memory(total=total, free=free, utilization=utilization, device="cuda:0") == expected


def test_request_of_more_than_is_free_tells_all_the_terms_and_both_ways_out() -> None:
    with pytest.raises(OutOfMemory) as caught:
        memory.request_memory(total=80 * GIB, free=60 * GIB - 1, utilization=0.9, device="cuda:1")
    assert str(caught.value) == (
        "cuda:1 has 60.0 GiB free of 80.0 GiB, and memory_utilization 0.9 asks for 72.0 GiB: lower [cache] "
        "memory_utilization below 0.74, or end what else holds memory on cuda:1 (20.0 GiB)"
    )
    assert caught.value.exit_code == 3


@given(st.integers(1, 1 << 45), st.integers(0, 1 << 45), st.floats(0.001, 1.0))
def test_request_never_passes_what_is_free(total: int, free: int, utilization: float) -> None:
    free = min(free, total)
    try:
        requested = memory.request_memory(total=total, free=free, utilization=utilization, device="x")
    except OutOfMemory:
        assert total * utilization > free - 1
    else:
        assert requested <= free
        assert requested >= total * utilization * (1 - 1e-12)


@dataclass(frozen=True)
class Case:
    before: MemorySnapshot
    after: MemorySnapshot
    expected: int


@pytest.mark.parametrize(
    "case",
    [
        # model and step peak at 4, nothing else moved
        Case(snap(), snap(free=6 * GIB, reserved=4 * GIB, allocated=2 * GIB, peak=4 * GIB), 5 * GIB),
        # the communicator's buffers were there before, so they belong to the baseline
        Case(snap(free=9 * GIB), snap(free=5 * GIB, reserved=4 * GIB, allocated=2 * GIB, peak=4 * GIB), 5 * GIB),
        # a co-tenant grew by 2 while we profiled
        Case(snap(), snap(free=4 * GIB, reserved=4 * GIB, allocated=2 * GIB, peak=4 * GIB), 3 * GIB),
        # a co-tenant gave 3 back: not ours to take
        Case(snap(free=7 * GIB), snap(free=6 * GIB, reserved=4 * GIB, allocated=2 * GIB, peak=4 * GIB), 5 * GIB),
        # a co-tenant took what we asked for: only what is free can be had
        Case(snap(), snap(free=1 * GIB, reserved=2 * GIB, allocated=2 * GIB, peak=1 * GIB), 1 * GIB),
    ],
)
def test_what_is_left_on_an_accelerator(case: Case) -> None:
    left = memory.cache_bytes_by_utilization(requested=9 * GIB, before=case.before, after=case.after, utilization=0.9)
    assert left == case.expected


def test_nothing_left_tells_all_the_terms() -> None:
    with pytest.raises(OutOfMemory) as caught:
        memory.cache_bytes_by_utilization(
            requested=3 * GIB,
            before=snap(),
            after=snap(free=5 * GIB, reserved=4 * GIB, allocated=3 * GIB, peak=4 * GIB),
            utilization=0.3,
        )
    assert str(caught.value) == (
        "nothing is left for the KV cache on cuda:0: memory_utilization 0.3 of 10.0 GiB is 3.0 GiB; the model and its "
        "largest step take 4.0 GiB, libraries and others took 1.0 GiB since the start, and 5.0 GiB are free: raise "
        "[cache] memory_utilization, or lower [scheduler] max_num_batched_tokens"
    )


def test_share_of_the_host() -> None:
    after = snap(process=GIB, peak=2 * GIB, free=7 * GIB)
    assert memory.cache_bytes_by_share_of_host(requested=5 * GIB, after=after, utilization=0.5) == 3 * GIB
    with pytest.raises(OutOfMemory) as caught:
        memory.cache_bytes_by_share_of_host(requested=GIB, after=after, utilization=0.1)
    assert str(caught.value) == (
        "nothing is left for the KV cache on cuda:0: memory_utilization 0.1 of 10.0 GiB is 1.0 GiB, this process holds "
        "2.0 GiB with the model, and 7.0 GiB are free: raise [cache] memory_utilization, or set [cache] memory_bytes"
    )


def test_sizes_that_are_given_must_be_free() -> None:
    spec = KVCacheSpec(
        groups=(
            KVCacheGroup(layers=(0,), block_size=16, bytes_per_block=MIB),
            KVCacheGroup(layers=(1,), block_size=16, bytes_per_block=3 * MIB, kind="sliding", window=8),
        )
    )
    terms = {"kind": "cuda", "requested": 0, "before": snap(), "after": snap(free=400 * MIB)}
    assert memory.cache_bytes(CacheConfig(num_blocks=100), spec, **terms) == 400 * MIB  # type: ignore[arg-type]  # mixed values
    with pytest.raises(OutOfMemory) as caught:
        memory.cache_bytes(CacheConfig(num_blocks=101), spec, **terms)  # type: ignore[arg-type]  # mixed values
    assert str(caught.value) == (
        "[cache] num_blocks = 101 needs 404.0 MiB for the KV cache, and cuda:0 has 400.0 MiB free of 10.0 GiB with the "
        "model loaded: lower it, or free memory on cuda:0"
    )
    with pytest.raises(OutOfMemory, match=r"^\[cache\] memory_bytes = 419430401 needs 400.0 MiB for the KV cache"):
        memory.cache_bytes(CacheConfig(memory_bytes=400 * MIB + 1), spec, **terms)  # type: ignore[arg-type]  # mixed


def test_defaults() -> None:
    assert memory.utilization_in_force(CacheConfig(), "cuda") == memory.DEFAULT_UTILIZATION
    assert memory.utilization_in_force(CacheConfig(), "cpu") is None
    assert memory.utilization_in_force(CacheConfig(num_blocks=1), "cuda") is None
    assert memory.utilization_in_force(CacheConfig(memory_utilization=0.4), "cpu") == 0.4
    assert memory.cache_bytes_unset(snap(free=8 * GIB + 3)) == 2 * GIB
    baseline = snap(free=8 * GIB)
    assert memory.requested_bytes(CacheConfig(), baseline, "cpu") == 2 * GIB
    assert memory.requested_bytes(CacheConfig(memory_bytes=5), baseline, "cuda") == 5
    assert memory.requested_bytes(CacheConfig(num_blocks=5), baseline, "cuda") == 0


def test_snapshots_can_be_subtracted() -> None:
    device = ScriptedDevice(
        memories=(
            DeviceMemory(total=10 * GIB, free=9 * GIB, allocated=1, reserved=2, peak=3, process=4),
            DeviceMemory(total=10 * GIB, free=7 * GIB, allocated=10, reserved=20, peak=30, process=40),
        )
    )
    before, after = memory.snapshot(device), memory.snapshot(device)
    change = after - before
    assert (change.free, change.allocated, change.reserved, change.peak, change.process) == (-2 * GIB, 9, 18, 27, 36)
    assert change.timestamp >= 0
    assert after.non_torch == 3 * GIB - 20


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (200 * MIB, "200.0 MiB"), (GIB, "1.0 GiB")],
)
def test_human(size: int, text: str) -> None:
    assert memory.human(size) == text
