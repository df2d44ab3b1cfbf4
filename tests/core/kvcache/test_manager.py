"""The manager: what is found again, in which order blocks go, and what is never changed."""

from __future__ import annotations

import pytest

from enginebay.errors import ConfigError
from enginebay.kvcache import KVCacheManager, KVSequence, PrefixHit

NOTHING = PrefixHit()


def manager(num_blocks: int = 8, block_size: int = 4, **more: int) -> KVCacheManager:
    return KVCacheManager(num_blocks=num_blocks, block_size=block_size, **more)  # type: ignore[arg-type]  # bools too


def open_(kv: KVCacheManager, request_id: str, *tokens: int, salt: str = "", adapter: str = "") -> KVSequence:
    return kv.open(request_id, tokens, [], salt=salt, adapter=adapter)


def computed(kv: KVCacheManager, request_id: str, *tokens: int, salt: str = "", adapter: str = "") -> KVSequence:
    """A sequence whose tokens were all computed, and the step acknowledged."""
    sequence = open_(kv, request_id, *tokens, salt=salt, adapter=adapter)
    assert kv.allocate(sequence, kv.lookup(sequence), len(tokens))
    kv.publish(sequence, len(tokens))
    return sequence


def test_full_blocks_are_found_again_and_partial_ones_are_not() -> None:  # K1
    kv = manager()
    first = computed(kv, "a", *range(10))
    hit = kv.lookup(open_(kv, "b", *range(10)))
    assert hit == PrefixHit((tuple(first.blocks[:2]),), 8, 0)
    assert kv.lookup(open_(kv, "c", 0, 1, 2, 3, 9, 9, 9, 9, 9)).num_tokens == 4
    assert kv.lookup(open_(kv, "d", 9, 1, 2, 3, 4, 5, 6, 7, 8)).num_tokens == 0


def test_the_last_token_of_a_full_hit_is_still_computed() -> None:  # K1
    kv = manager()
    computed(kv, "a", *range(8))
    assert kv.lookup(open_(kv, "b", *range(8))).num_tokens == 4
    assert kv.lookup(open_(kv, "c", *range(9))).num_tokens == 8


def test_generated_tokens_are_found_too() -> None:  # K1
    kv = manager()
    output: list[int] = []
    sequence = kv.open("a", (0, 1, 2), output)
    kv.allocate(sequence, NOTHING, 3)
    output += [3, 4, 5, 6, 7, 8]
    kv.extend(sequence, 8)
    kv.publish(sequence, 8)
    assert kv.lookup(open_(kv, "b", *range(9))).num_tokens == 8


def test_other_salt_or_adapter_is_no_hit() -> None:  # K2
    kv = manager()
    computed(kv, "a", *range(9), salt="s", adapter="x")
    found = {
        (salt, adapter): kv.lookup(open_(kv, f"b{salt}{adapter}", *range(9), salt=salt, adapter=adapter)).num_tokens
        for salt in ("", "s")
        for adapter in ("", "x")
    }
    assert found == {("", ""): 0, ("", "x"): 0, ("s", ""): 0, ("s", "x"): 8}


def test_one_that_must_compute_everything_finds_nothing_and_is_found() -> None:
    kv = manager()
    computed(kv, "a", *range(9))
    told = kv.open("b", tuple(range(12)), [], reuse=False)
    assert kv.lookup(told) == NOTHING
    assert kv.cached_prefix_tokens(told) == 0
    assert kv.allocate(told, NOTHING, 12)
    assert (kv.prefix_queries, kv.prefix_hits) == (9, 0), "it did not ask, so it is not counted"
    kv.publish(told, 12)
    kv.free(told)
    assert kv.lookup(told) == NOTHING, "when it starts again neither"
    assert kv.lookup(open_(kv, "c", *range(13))).num_tokens == 12


def test_blocks_come_back_in_reverse_order() -> None:  # K3
    kv = manager()
    sequence = computed(kv, "a", *range(12))
    assert sequence.blocks == [0, 1, 2]
    kv.free(sequence)
    assert kv.pool.free_order() == (3, 4, 5, 6, 7, 2, 1, 0)  # the tail of the prompt is forgotten first


def test_the_least_recently_used_cached_block_is_evicted_first() -> None:  # K3
    kv = manager(num_blocks=3)
    a, b, c = (computed(kv, name, *range(start, start + 4)) for name, start in (("a", 0), ("b", 10), ("c", 20)))
    for sequence in (b, a, c):
        kv.close(sequence)
    again = open_(kv, "b2", *range(10, 15))
    assert kv.allocate(again, kv.lookup(again), 5)  # its own block was the oldest, and is in use again: a's goes
    assert kv.lookup(open_(kv, "a2", *range(5))).num_tokens == 0
    assert kv.lookup(open_(kv, "c2", *range(20, 25))).num_tokens == 4
    assert kv.evictions == 1


def test_blocks_without_a_name_are_reused_before_cached_ones() -> None:  # K3
    kv = manager(num_blocks=4)
    cached = computed(kv, "a", *range(8))
    partial = computed(kv, "b", 50, 51)
    kv.close(cached)
    kv.close(partial)
    assert kv.pool.free_order() == (2, 3, 1, 0)
    other = open_(kv, "c", 60, 61, 62, 63, 64)
    assert kv.allocate(other, NOTHING, 5)
    assert kv.evictions == 0
    assert kv.lookup(open_(kv, "d", *range(9))).num_tokens == 8


def test_reset_in_use_says_no_and_changes_nothing() -> None:  # K4
    kv = manager()
    kept, done = computed(kv, "a", *range(8)), computed(kv, "b", *range(50, 58))
    kv.close(done)
    before = kv.pool.free_order(), kv.num_cached_blocks
    assert kv.reset() is False
    assert (kv.pool.free_order(), kv.num_cached_blocks) == before
    assert kv.lookup(open_(kv, "c", *range(50, 59))).num_tokens == 8
    kv.close(kept)
    assert kv.reset() is True
    assert kv.num_cached_blocks == 0
    assert kv.lookup(open_(kv, "d", *range(50, 59))).num_tokens == 0
    assert kv.num_free_blocks == kv.num_blocks


def test_a_block_is_not_found_before_its_step_is_acknowledged() -> None:
    kv = manager()
    first = open_(kv, "a", *range(9))
    kv.allocate(first, NOTHING, 9)
    assert kv.lookup(open_(kv, "b", *range(9))).num_tokens == 0
    kv.publish(first, 7)
    assert kv.lookup(open_(kv, "c", *range(9))).num_tokens == 4


def test_two_that_compute_the_same_share_from_the_first_on() -> None:
    kv = manager()
    first, second = (open_(kv, name, *range(9)) for name in "ab")
    for sequence in (first, second):
        kv.allocate(sequence, kv.lookup(sequence), 9)
    kv.publish(first, 9)
    kv.publish(second, 9)
    third = open_(kv, "c", *range(9))
    kv.allocate(third, kv.lookup(third), 9)
    assert third.blocks[:2] == first.blocks[:2]
    for sequence in (first, second, third):
        kv.close(sequence)
    assert kv.num_free_blocks == kv.num_blocks


def test_a_refused_allocation_changes_nothing() -> None:
    kv = manager(num_blocks=4)
    kv.close(computed(kv, "a", *range(8)))
    asking = open_(kv, "b", *range(20))
    before = kv.pool.free_order(), kv.num_cached_blocks
    assert kv.allocate(asking, kv.lookup(asking), 20) is False
    assert (kv.pool.free_order(), kv.num_cached_blocks, asking.blocks) == (*before, [])
    assert kv.allocate(asking, kv.lookup(asking), 16)
    assert kv.extend(asking, 17) is None
    assert kv.extend(asking, 16) == ()


def test_probe_changes_nothing_and_counts_nothing() -> None:
    kv = manager(num_blocks=4)
    kv.close(computed(kv, "a", *range(8)))
    open_(kv, "b", *range(9))

    class Asked:
        request_id = "b"
        prompt_token_ids = tuple(range(9))

    class Unknown(Asked):
        request_id = "not added"

    before = kv.pool.free_order(), kv.prefix_queries, kv.prefix_hits
    assert kv.view().cached_prefix_tokens(Asked()) == kv.cached_prefix_tokens(Unknown()) == 8
    assert (kv.pool.free_order(), kv.prefix_queries, kv.prefix_hits) == before
    assert not hasattr(kv.view(), "reset")


def test_hits_are_counted_once() -> None:
    kv = manager()
    computed(kv, "a", *range(9))
    again = open_(kv, "b", *range(9))
    hit = kv.lookup(again)
    kv.allocate(again, hit, 9)
    assert (kv.prefix_queries, kv.prefix_hits) == (18, 8)
    kv.free(again)
    kv.allocate(again, kv.lookup(again), 9, count=False)  # after a preemption
    assert (kv.prefix_queries, kv.prefix_hits) == (18, 8)


def test_without_prefix_caching_nothing_is_found_or_counted() -> None:
    kv = KVCacheManager(num_blocks=8, block_size=4, prefix_caching=False)
    kv.close(computed(kv, "a", *range(9)))
    assert kv.lookup(open_(kv, "b", *range(9))) == NOTHING
    assert (kv.num_cached_blocks, kv.prefix_queries) == (0, 0)


def test_reserved_blocks_are_never_handed_out() -> None:
    kv = KVCacheManager(num_blocks=5, block_size=4, reserved_blocks=2)
    assert (kv.num_blocks, kv.num_free_blocks) == (3, 3)
    sequence = open_(kv, "a", *range(12))
    assert kv.allocate(sequence, NOTHING, 12)
    assert sequence.block_ids == ((2, 3, 4),)


def test_an_id_used_again_leaves_the_older_sequence_alone() -> None:
    kv = manager()
    old, new = computed(kv, "a", *range(8)), computed(kv, "a", *range(50, 58))
    kv.close(old)
    assert kv.num_free_blocks == 6
    assert kv.pool.refs(new.blocks[0]) == 1


def test_hashing_stops_at_the_first_miss() -> None:
    kv = manager()
    long = open_(kv, "a", *range(4000))
    kv.lookup(long)
    assert long.names is not None
    assert len(long.names) == 1


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"num_blocks": 2, "block_size": 4, "reserved_blocks": 2},
            (
                "the KV cache has 2 blocks, of which 2 are reserved: none is left for requests. "
                "Give it more memory ([cache] memory_bytes or num_blocks)."
            ),
        ),
        ({"num_blocks": 2, "block_size": 0}, "[cache] block_size is 0: a block holds at least one token"),
    ],
)
def test_sizes_that_hold_nothing_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        KVCacheManager(**sizes)  # type: ignore[arg-type]  # a table
    assert str(refused.value) == message
