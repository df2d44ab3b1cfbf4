"""The cache beside the scheduler: who hears of its content, and when it may be reset."""

from __future__ import annotations

import pytest

from enginebay.engine.cache import CacheSeat
from enginebay.errors import EngineBusy
from enginebay.kvcache import CacheCleared, CacheEventBatch, CacheStored, KVCacheManager, KVSequence, PrefixHit


def manager(seat: CacheSeat) -> KVCacheManager:
    return seat.put(KVCacheManager(num_blocks=8, block_size=4, events=seat.events))


def computed(kv: KVCacheManager) -> KVSequence:
    sequence = kv.open("a", tuple(range(8)), [])
    kv.allocate(sequence, PrefixHit(), 8)
    kv.publish(sequence, 8)
    return sequence


def test_what_happened_is_told_once_per_step_and_in_order() -> None:
    told: list[CacheEventBatch] = []
    seat = CacheSeat(told.append, replica=2)
    kv = manager(seat)
    computed(kv)
    seat.tell(4, 1)
    seat.tell(5, 1)  # nothing happened in this one
    (batch,) = told
    assert (batch.step, batch.generation, batch.replica) == (4, 1, 2)
    assert [type(event) for event in batch.events] == [CacheCleared, CacheStored]
    manager(seat)  # the steps in flight were void: a fresh scheduler, an empty cache
    seat.tell(6, 2)
    assert told[1:] == [CacheEventBatch(step=6, generation=2, events=(CacheCleared(),), replica=2)]


def test_without_a_listener_nothing_is_kept() -> None:
    seat = CacheSeat()
    kv = manager(seat)
    computed(kv)
    seat.tell(0, 0)
    assert kv.drain_events() == ()


def test_a_reset_in_use_is_refused_and_changes_nothing() -> None:  # K4
    told: list[CacheEventBatch] = []
    seat = CacheSeat(told.append)
    kv = manager(seat)
    sequence = computed(kv)
    seat.tell(0, 0)
    with pytest.raises(EngineBusy) as refused:
        seat.reset()
    assert str(refused.value) == (
        "reset_prefix_cache is not safe while requests run: 2 of 8 KV blocks are in use; drain first, or abort them"
    )
    assert (kv.num_cached_blocks, len(told)) == (2, 1)
    kv.close(sequence)
    seat.reset()
    assert kv.num_cached_blocks == 0
    assert told[1].events == (CacheCleared(),)


def test_a_scheduler_with_a_cache_of_its_own_has_nothing_to_reset() -> None:
    CacheSeat().reset()
