"""The manager with groups against a naive model of it: what each block holds, who holds it, and what can be found."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from enginebay.kvcache import (
    NULL_BLOCK,
    CacheCleared,
    CacheRemoved,
    CacheStored,
    GroupSpec,
    KVCacheManager,
    KVSequence,
    PrefixHit,
)

SIZE = 2
FULL = GroupSpec(SIZE)


def sliding(window: int) -> GroupSpec:
    return GroupSpec(SIZE, "sliding_window", window)


SHAPES = [
    (FULL,),
    (sliding(3),),
    (FULL, sliding(3)),
    (FULL, FULL, sliding(4)),
    (FULL, sliding(1), sliding(5), sliding(5)),
    (sliding(2), sliding(7)),
]
Text = tuple[tuple[int, ...], str]
"""Tokens up to a block's end, and the salt: what a name stands for."""


class Use(RuleBasedStateMachine):
    """Requests come, grow, are acknowledged and trimmed, give way, and go; the cache is reset."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, KVSequence] = {}
        self.acked: dict[str, int] = {}
        self.number = 0

    @initialize(shape=st.sampled_from(SHAPES), most=st.sampled_from([None, 4]), blocks=st.integers(9, 24))
    def make(self, shape: tuple[GroupSpec, ...], most: int | None, blocks: int) -> None:
        self.shape = shape
        self.kv = KVCacheManager(
            num_blocks=blocks, block_size=SIZE, groups=shape, max_step_tokens=most, reserved_blocks=1, events=True
        )
        self.num_blocks = blocks
        self.written: dict[int, tuple[int, Text]] = {}  # block → its group, and what it holds
        self.names: dict[tuple[int, Text], int] = {}  # naive index: what can be found, and in which block
        self.free = list(range(1, blocks))  # naive free list, in order
        self.told: Counter[tuple[int, bytes]] = Counter()

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12), salt=st.sampled_from(["", "s"]))
    def start(self, tokens: list[int], salt: str) -> None:
        self.number += 1
        sequence = self.kv.open(str(self.number), tuple(tokens), [], salt=salt)
        if not self._allocate(sequence, count=True):
            self.kv.close(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def grow(self, data: st.DataObject, tokens: list[int]) -> None:
        sequence = self._one(data)
        end, begun = sequence.num_tokens + len(tokens), min(sequence.capacity, sequence.num_tokens)
        missing = [max(0, -(-end // SIZE) - len(table)) for table in sequence.tables]
        added = self.kv.extend(sequence, end)
        assert (added is None) is (sum(missing) > len(self.free))
        if added is None:
            return
        assert [len(ids) for ids in added] == (missing if any(missing) else [])
        for ids in added:
            self._take(ids)
        sequence.output.extend(tokens)
        self._write(sequence, begun, end)  # with what had no blocks before: a group with a window has few at first

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        sequence = self._one(data)
        computed = data.draw(st.integers(self.acked[sequence.request_id], min(sequence.capacity, sequence.num_tokens)))
        first = self.acked[sequence.request_id] // SIZE
        self.acked[sequence.request_id] = computed
        self.kv.publish(sequence, computed)
        for place, table in enumerate(sequence.tables):
            for index in range(first, computed // SIZE):
                if table[index] != NULL_BLOCK:
                    self.names.setdefault((place, self._text(sequence, index)), table[index])
        dead = {
            (place, index): sequence.tables[place][index]
            for place, group in enumerate(self.shape)
            if group.window is not None
            for index in range(len(sequence.tables[place]))
            if (index + 1) * SIZE <= computed - group.window + 1 and sequence.tables[place][index] != NULL_BLOCK
        }
        self.kv.trim(sequence, computed)
        for place in range(len(self.shape)):
            self._back([block for (its, _), block in dead.items() if its == place])
        assert all(sequence.tables[place][index] == NULL_BLOCK for place, index in dead)
        assert self.kv.num_free_blocks == len(self.free)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), preempt=st.booleans())
    def stop(self, data: st.DataObject, preempt: bool) -> None:
        sequence = self._one(data)
        del self.live[sequence.request_id]
        held = [
            table[index]
            for index in range(max(map(len, sequence.tables)))
            for table in sequence.tables
            if index < len(table) and table[index] != NULL_BLOCK
        ]
        self.kv.free(sequence)
        self._back(held)
        if not (preempt and self._allocate(sequence, count=False)):
            self.kv.close(sequence)

    @rule()
    def reset(self) -> None:
        assert self.kv.reset() is (not self.live)
        if not self.live:
            self.names.clear()

    @invariant()
    def no_block_is_lost_and_counts_agree(self) -> None:
        if not hasattr(self, "kv"):
            return
        held = Counter(
            block for one in self.live.values() for table in one.tables for block in table if block != NULL_BLOCK
        )
        assert self.kv.pool.free_order() == tuple(self.free)  # K3
        assert sorted([*self.free, *held]) == list(range(1, self.num_blocks))
        assert all(self.kv.pool.refs(block) == count for block, count in held.items())
        for one in self.live.values():
            assert one.capacity == min(map(len, one.tables)) * SIZE
            for place, table in enumerate(one.tables):  # what later tokens see is there, and is the request's own text
                start = self.shape[place].first_seen(self.acked[one.request_id])
                for index in range(start, self.acked[one.request_id] // SIZE):
                    assert self.written[table[index]] == (place, self._text(one, index))
        groups = {
            block: place for one in self.live.values() for place, table in enumerate(one.tables) for block in table
        }
        assert all(
            block == NULL_BLOCK or self.written.get(block, (place,))[0] == place for block, place in groups.items()
        )

    @invariant()
    def events_tell_what_is_cached(self) -> None:
        if not hasattr(self, "kv"):
            return
        for event in self.kv.drain_events():
            match event:
                case CacheCleared():
                    self.told.clear()
                case CacheStored():
                    self.told.update((event.group, one) for one in event.hashes)
                    assert event.num_tokens == len(event.hashes) * SIZE
                case CacheRemoved():
                    self.told.subtract((event.group, one) for one in event.hashes)
        there = +self.told
        assert set(self.told.values()) <= {0, 1}, "stored twice, or removed and never stored"
        assert len(there) == len(self.names) == self.kv.num_cached_blocks
        assert Counter(group for group, _ in there) == Counter(group for group, _ in self.names)

    def _one(self, data: st.DataObject) -> KVSequence:
        return self.live[data.draw(st.sampled_from(sorted(self.live)))]

    def _text(self, sequence: KVSequence, index: int) -> Text:
        return tuple(sequence.tokens(0, (index + 1) * SIZE)), sequence.salt

    def _best(self, sequence: KVSequence) -> int:
        """The longest beginning by trying all of them."""
        for count in range((sequence.num_tokens - 1) // SIZE, 0, -1):
            if all(
                (place, self._text(sequence, index)) in self.names
                for place, group in enumerate(self.shape)
                for index in range(count)
                if group.window is None or (index + 1) * SIZE > count * SIZE - group.window + 1
            ):
                return count
        return 0

    def _allocate(self, sequence: KVSequence, *, count: bool) -> bool:
        hit, length = self.kv.lookup(sequence), sequence.num_tokens
        assert hit.num_tokens == self._best(sequence) * SIZE
        assert hit.num_tokens < length
        cached = hit.block_ids or ((),) * len(self.shape)
        for place, ids in enumerate(cached):
            for index, block in enumerate(ids):
                assert block == NULL_BLOCK or self.names[place, self._text(sequence, index)] == block
        asked, found = self.kv.prefix_queries, self.kv.prefix_hits
        before = self.kv.pool.free_order()
        room = self.kv.has_room(hit, length)
        assert self.kv.allocate(sequence, hit, length, count=count) is room
        if not room:
            assert (self.kv.pool.free_order(), sequence.tables) == (before, ())
            return False
        assert (self.kv.prefix_queries - asked, self.kv.prefix_hits - found) == (
            (length, hit.num_tokens) if count else (0, 0)
        )
        self._share(hit)
        for ids, table in zip(cached, sequence.tables, strict=True):
            self._take(tuple(table[len(ids) :]))
        self.live[sequence.request_id] = sequence
        self.acked[sequence.request_id] = hit.num_tokens
        self._write(sequence, hit.num_tokens, min(length, sequence.capacity))
        return True

    def _share(self, hit: PrefixHit) -> None:
        for ids in hit.block_ids:
            for block in ids:
                if block in self.free:
                    self.free.remove(block)

    def _take(self, ids: tuple[int, ...]) -> None:
        for block in ids:
            assert self.free.pop(0) == block
            self.written.pop(block, None)
            self.names = {text: its for text, its in self.names.items() if its != block}

    def _back(self, blocks: list[int]) -> None:
        named = set(self.names.values())
        for block in reversed(blocks):
            if self.kv.pool.refs(block) == 0:
                self.free.append(block) if block in named else self.free.insert(0, block)

    def _write(self, sequence: KVSequence, start: int, end: int) -> None:
        for index in range(start // SIZE, -(-end // SIZE)):
            for place, table in enumerate(sequence.tables):
                assert self.kv.pool.refs(table[index]) == 1, "written to while others hold it"
                tokens = tuple(sequence.tokens(0, min(end, (index + 1) * SIZE)))
                self.written[table[index]] = (place, (tokens, sequence.salt))


TestUse = Use.TestCase
TestUse.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
