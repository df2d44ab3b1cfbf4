"""How many blocks there are, and what the longest request is."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.config import CacheConfig
from enginebay.engine.startup.budget import BlockBudget, block_budget, longest_request
from enginebay.errors import CapabilityError, OutOfMemory
from enginebay.messages import KVCacheGroup, KVCacheSpec, MemoryAvailable


def spec(size: int = 1000, *, block_size: int = 16, **rest: Any) -> KVCacheSpec:
    return KVCacheSpec(groups=(KVCacheGroup(layers=(0,), block_size=block_size, bytes_per_block=size),), **rest)


def budget(*ranks: tuple[KVCacheSpec, int], reserved: int = 0, **cache: Any) -> BlockBudget:
    return block_budget(
        CacheConfig(**cache),
        [s for s, _ in ranks],
        [MemoryAvailable(kv_cache_bytes=size) for _, size in ranks],
        reserved_blocks=reserved,
        max_num_seqs=4,
        max_model_len=100,
    )


def test_the_fewest_blocks_of_all_ranks() -> None:
    got = budget((spec(1000), 9_500), (spec(2000), 9_500), memory_bytes=9_500)
    assert (got.num_blocks, got.why) == (4, "[cache] memory_bytes")


def test_unset_is_no_more_than_the_longest_requests_can_use() -> None:
    got = budget((spec(), 10**9), reserved=1)
    assert (got.num_blocks, got.reserved_blocks) == (4 * 7 + 1, 1)
    assert got.why == "what max_num_seqs = 4 requests of max_model_len = 100 tokens can use"
    assert budget((spec(), 5_000)) == BlockBudget(num_blocks=5, reserved_blocks=0, why="a share of the free memory")


def test_a_share_is_taken_whole_and_a_number_as_it_is() -> None:
    assert budget((spec(), 10**6), memory_utilization=0.5).num_blocks == 1000
    assert budget((spec(), 0), num_blocks=3).num_blocks == 3
    assert budget((spec(num_blocks=9, reserved_blocks=2), 0)) == BlockBudget(
        num_blocks=9, reserved_blocks=2, why="fixed by the runner"
    )


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(CapabilityError, match=r"\[cache\] num_blocks = 3, but the runner fixes it at 9"):
        budget((spec(num_blocks=9), 0), num_blocks=3)
    with pytest.raises(CapabilityError, match=r"the KV groups have blocks of \[16, 32\] tokens"):
        budget((spec(), 0), (spec(block_size=32), 0))
    with pytest.raises(OutOfMemory) as caught:
        budget((spec(), 900), memory_bytes=900)
    assert str(caught.value) == (
        "the KV cache may take 900 bytes, and a block takes 1000 (0 are reserved): not one request fits; "
        "give [cache] memory_bytes more, or free memory"
    )


def test_the_longest_request() -> None:
    few = BlockBudget(num_blocks=5, reserved_blocks=1, why="[cache] num_blocks")
    assert longest_request(few, block_size=16, max_model_len=64, explicit=True) == (64, None)
    tokens, note = longest_request(few, block_size=16, max_model_len=100, explicit=False)
    assert tokens == 64
    assert note == (
        "the longest request is 64 tokens: the KV cache has 4 blocks of 16 tokens ([cache] num_blocks), "
        "the model takes 100"
    )
    with pytest.raises(CapabilityError) as caught:
        longest_request(few, block_size=16, max_model_len=100, explicit=True)
    assert str(caught.value) == (
        "[model] max_model_len = 100 does not fit: the KV cache has 4 blocks of 16 tokens ([cache] num_blocks), "
        "enough for 64 tokens; lower max_model_len to 64, or give [cache] more"
    )
    with pytest.raises(CapabilityError, match=r"1 blocks .* and 1 are reserved: none is left for requests"):
        longest_request(
            BlockBudget(num_blocks=1, reserved_blocks=1, why="x"), block_size=16, max_model_len=9, explicit=False
        )


def grouped(*windows: int | None, shared: int | None = None) -> KVCacheSpec:
    groups = tuple(
        KVCacheGroup(
            layers=(i,), block_size=16, bytes_per_block=1000, kind="full" if w is None else "sliding_window", window=w
        )
        for i, w in enumerate(windows)
    )
    return KVCacheSpec(groups=groups, bytes_per_block=shared)


def test_groups_share_what_they_say_and_the_null_block_is_reserved() -> None:
    assert budget((grouped(None, 32, shared=1000), 10_000), memory_bytes=10_000).num_blocks == 10
    got = budget((grouped(None, 32), 10_000), memory_bytes=10_000)
    assert (got.num_blocks, got.reserved_blocks) == (5, 1)
    assert [group.window for group in got.groups] == [None, 32]


def test_ranks_with_other_groups_are_refused() -> None:
    with pytest.raises(CapabilityError) as caught:
        budget((grouped(None, 32), 10_000), (grouped(None), 10_000))
    assert str(caught.value) == (
        "rank 1 has the KV groups full, and rank 0 has full, sliding_window 32: a runner's kv_cache_spec names the "
        "same groups on every rank, those without layers there included"
    )
