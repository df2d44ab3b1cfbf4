"""Groups with windows beside one that sees everything: what is held, what is found, what is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from enginebay.errors import ConfigError
from enginebay.kvcache import (
    NULL_BLOCK,
    CacheCleared,
    CacheRemoved,
    CacheShape,
    CacheStored,
    GroupSpec,
    KVCacheManager,
    KVSequence,
    PrefixHit,
    block_hash,
    root_hash,
)
from enginebay.kvcache import _names as names

SIZE, WINDOW = 4, 8
FULL, SLIDING = GroupSpec(SIZE), GroupSpec(SIZE, "sliding_window", WINDOW)


def manager(*groups: GroupSpec, num_blocks: int = 64, **more: Any) -> KVCacheManager:
    return KVCacheManager(num_blocks=num_blocks, block_size=SIZE, groups=groups or (FULL, SLIDING), **more)


def computed(kv: KVCacheManager, request_id: str, tokens: range, *, chunk: int = SIZE, **more: Any) -> KVSequence:
    """A sequence that was computed in chunks, each acknowledged."""
    sequence = kv.open(request_id, tuple(tokens), [], **more)
    hit = kv.lookup(sequence)
    assert kv.allocate(sequence, hit, hit.num_tokens + 1)
    for end in range(hit.num_tokens + chunk, len(tokens) + 1, chunk):
        assert kv.extend(sequence, end) is not None
        kv.publish(sequence, end)
        kv.trim(sequence, end)
    return sequence


def held(kv: KVCacheManager) -> int:
    return kv.num_blocks - kv.num_free_blocks


def test_a_long_request_holds_its_window_alone() -> None:
    plain, windowed, mixed = manager(FULL), manager(SLIDING), manager(FULL, SLIDING)
    for kv in (plain, windowed, mixed):
        computed(kv, "a", range(120))
    assert [held(kv) for kv in (plain, windowed, mixed)] == [30, 2, 32]


def test_what_fell_out_of_the_window_comes_back_and_keeps_its_place() -> None:
    kv = manager()
    sequence = computed(kv, "a", range(20))
    full, sliding = sequence.block_ids
    assert sliding[:3] == (NULL_BLOCK,) * 3, "the next token is at 20, and sees 13 and later"
    assert NULL_BLOCK not in (*full, *sliding[3:])
    assert len(full) == len(sliding) == 5
    kv.close(sequence)
    assert held(kv) == 0


def test_the_null_block_is_never_handed_out() -> None:
    kv = manager(num_blocks=9)
    sequence = kv.open("a", tuple(range(16)), [])
    assert kv.num_blocks == 8
    assert kv.allocate(sequence, PrefixHit(), 16)
    assert sorted(block for table in sequence.block_ids for block in table) == list(range(1, 9))


def test_a_hit_needs_all_of_the_full_group_and_the_last_window_of_the_other() -> None:  # K1
    kv = manager()
    first = computed(kv, "a", range(24))
    hit = kv.lookup(kv.open("b", tuple(range(24)), []))
    assert hit.num_tokens == 20
    assert hit.block_ids[0] == first.block_ids[0][:5]
    assert hit.block_ids[1][:3] == (NULL_BLOCK,) * 3
    assert NULL_BLOCK not in hit.block_ids[1][3:]


def test_a_hit_ends_where_a_group_lacks_something() -> None:
    kv = manager(num_blocks=22)
    kv.close(computed(kv, "a", range(40)))  # its first windows' blocks came back first, and are the next to go
    other = kv.open("b", tuple(range(100, 112)), [])
    assert kv.allocate(other, PrefixHit(), 12)
    gone = [kv.lookup(kv.open(f"c{end}", tuple(range(end)), [])).num_tokens for end in (9, 13, 41)]
    assert gone == [0, 0, 40]


def test_windows_alone_are_found_from_the_end() -> None:
    kv = manager(SLIDING, num_blocks=12)
    kv.close(computed(kv, "a", range(40)))
    assert kv.lookup(kv.open("b", tuple(range(41)), [])).num_tokens == 40
    taken = kv.open("c", tuple(range(100, 132)), [])
    assert kv.allocate(taken, PrefixHit(), 32)  # evicts the eight that came back first
    assert kv.lookup(kv.open("d", tuple(range(41)), [])).num_tokens == 40
    assert kv.lookup(kv.open("e", tuple(range(33)), [])).num_tokens == 0


def test_other_salt_adapter_extra_key_or_layout_is_no_hit_in_any_group() -> None:  # K2
    kv = manager()
    computed(kv, "a", range(24), salt="s", adapter="x", extra_keys=_picture)
    asked: list[dict[str, Any]] = [
        {"salt": "s", "adapter": "x", "extra_keys": _picture},
        {"salt": "t", "adapter": "x", "extra_keys": _picture},
        {"salt": "s", "adapter": "y", "extra_keys": _picture},
        {"salt": "s", "adapter": "x"},
    ]
    found = [kv.lookup(kv.open(str(i), tuple(range(24)), [], **more)).num_tokens for i, more in enumerate(asked)]
    assert found == [20, 0, 0, 4], "the picture stands in the second block"
    assert root_hash("", "", "w\nfloat32") != root_hash("", "", "w\nbfloat16")


def _picture(start: int, end: int) -> bytes:
    return b"a picture" if start <= 5 < end else b""


def test_groups_never_share_a_block() -> None:
    kv = manager(FULL, SLIDING, SLIDING)
    computed(kv, "a", range(24))
    again = kv.open("b", tuple(range(24)), [])
    kv.allocate(again, kv.lookup(again), 24)
    held_blocks = [block for table in again.block_ids for block in table if block != NULL_BLOCK]
    assert len(held_blocks) == len(set(held_blocks))


def test_the_longest_request_counts_a_window_once() -> None:
    shape = CacheShape((FULL, SLIDING), max_step_tokens=16)
    assert shape.most_blocks(8) == 4
    assert shape.most_blocks(400) == 100 + 7  # 7 tokens of the window, 16 of the step, however they lie: 7 blocks
    assert shape.most_tokens(107, 10_000) == 400
    assert CacheShape((FULL, SLIDING)).most_blocks(400) == 200, "nobody is to give way: room for all is kept"
    assert CacheShape((SLIDING,), 16).most_tokens(7, 10_000) == 10_000


def test_a_request_that_starts_with_all_of_its_prompt_is_given_no_more_than_it_can_hold() -> None:
    kv = manager(num_blocks=40, max_step_tokens=16)
    sequence = kv.open("a", tuple(range(100)), [])
    assert kv.has_room(PrefixHit(), 100)
    assert kv.allocate(sequence, PrefixHit(), 100)
    assert [len(table) for table in sequence.block_ids] == [25, 7]
    assert sequence.capacity == 28
    unsparing = manager(num_blocks=40)
    assert not unsparing.has_room(PrefixHit(), 100)


def test_events_are_told_in_order_and_once() -> None:
    kv = manager(FULL, num_blocks=3, events=True)
    assert kv.drain_events() == (CacheCleared(),)
    kv.close(computed(kv, "a", range(8), chunk=8))
    root = root_hash("", "")
    first = block_hash(root, range(4))
    second = block_hash(first, range(4, 8))
    assert kv.drain_events() == (CacheStored(hashes=(first, second), parent=root, num_tokens=8, group=0),)
    assert kv.drain_events() == ()
    sequence = kv.open("b", tuple(range(50, 56)), [])
    assert kv.allocate(sequence, PrefixHit(), 6)
    assert kv.drain_events() == (CacheRemoved(hashes=(second,), group=0),)


def test_a_stored_run_begins_after_what_another_had_named() -> None:
    kv = manager(FULL, events=True)
    both = [kv.open(name, tuple(range(8)), []) for name in "ab"]
    for sequence in both:
        kv.allocate(sequence, PrefixHit(), 8)
    kv.publish(both[0], 4)
    kv.drain_events()
    kv.publish(both[1], 8)
    first = block_hash(root_hash("", ""), range(4))
    expected = CacheStored(hashes=(block_hash(first, range(4, 8)),), parent=first, num_tokens=4)
    assert kv.drain_events() == (expected,)


def test_each_group_tells_of_its_own_and_a_reset_clears_all() -> None:
    kv = manager(events=True)
    kv.close(computed(kv, "a", range(8), chunk=8))
    stored = [event for event in kv.drain_events() if isinstance(event, CacheStored)]
    assert [event.group for event in stored] == [0, 1]
    assert stored[0].hashes == stored[1].hashes
    assert kv.reset() is True
    assert kv.drain_events() == (CacheCleared(),)
    assert manager().drain_events() == (), "nobody listens: nothing is kept"


def test_requests_that_wait_are_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def block(parent: bytes, tokens: Sequence[int], extra: bytes) -> bytes:
        asked.append("block")
        return block_hash(parent, tokens, extra)

    def root(salt: str, adapter: str, weights: str) -> bytes:
        asked.append("root")
        return root_hash(salt, adapter)

    monkeypatch.setattr(names, "block_hash", block)
    monkeypatch.setattr(names, "_root", root)
    kv = manager(FULL)
    prompt = tuple(range(64))
    for number in range(10_000):
        kv.open(str(number), prompt, [], salt=str(number))
    assert asked == []
    kv.lookup(kv.open("asked", prompt, []))
    assert asked == ["root", "block"], "up to the first that is missing"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "chunked"}, "a KV group has the kind 'chunked', and the known ones are full, sliding_window"),
        ({"kind": "full", "window": 8}, "a KV group of kind full has window 8: sliding ones have one, alone"),
        ({"kind": "sliding_window", "window": 0}, "a KV group has a window of 0 tokens: a token sees at least itself"),
    ],
)
def test_a_group_that_makes_no_sense_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        GroupSpec.of(**{"block_size": 4, "kind": "full", "window": None, **spec})
    assert str(refused.value) == message
