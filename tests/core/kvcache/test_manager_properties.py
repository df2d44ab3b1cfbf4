"""The manager under random use: no block is lost, none has two owners, and what is found is what was written."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from enginebay.kvcache import KVCacheManager, KVSequence

BLOCKS, SIZE, RESERVED = 9, 2, 1
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)


class Use(RuleBasedStateMachine):
    """Requests come, grow, are acknowledged, give way, and go."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVCacheManager(num_blocks=BLOCKS, block_size=SIZE, reserved_blocks=RESERVED)
        self.live: list[KVSequence] = []
        self.written: dict[int, tuple[tuple[int, ...], str]] = {}  # block → tokens up to its end, and the salt
        self.salts: dict[str, str] = {}
        self.number = 0

    @rule(tokens=TOKENS, salt=st.sampled_from(["", "s"]))
    def start(self, tokens: list[int], salt: str) -> None:
        self.number += 1
        sequence = self.kv.open(str(self.number), tuple(tokens), [], salt=salt)
        self.salts[sequence.request_id] = salt
        hit = self.kv.lookup(sequence)
        assert hit.num_tokens < len(tokens)
        for index, block in enumerate(hit.block_ids[0] if hit.block_ids else ()):
            assert self.written[block] == (tuple(tokens[: (index + 1) * SIZE]), salt)
        if self.kv.allocate(sequence, hit, len(tokens)):
            self.live.append(sequence)
            self._write(sequence, hit.num_tokens, len(tokens))
        else:
            self.kv.close(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 1))
    def grow(self, data: st.DataObject, token: int) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        if self.kv.extend(sequence, sequence.num_tokens + 1) is not None:
            sequence.output.append(token)
            self._write(sequence, sequence.num_tokens - 1, sequence.num_tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        self.kv.publish(sequence, data.draw(st.integers(0, sequence.num_tokens)))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), preempt=st.booleans())
    def stop(self, data: st.DataObject, preempt: bool) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        self.live.remove(sequence)
        if preempt:
            self.kv.free(sequence)
            hit = self.kv.lookup(sequence)
            if self.kv.allocate(sequence, hit, sequence.num_tokens, count=False):
                self.live.append(sequence)
                self._write(sequence, hit.num_tokens, sequence.num_tokens)
                return
        self.kv.close(sequence)

    @rule()
    def reset(self) -> None:
        assert self.kv.reset() is (not self.live)

    @invariant()
    def no_block_is_lost_and_counts_agree(self) -> None:
        held: dict[int, int] = {}
        for sequence in self.live:
            assert sequence.capacity == len(sequence.blocks) * SIZE
            for block in sequence.blocks:
                held[block] = held.get(block, 0) + 1
        free = self.kv.pool.free_order()
        assert sorted([*free, *held]) == list(range(RESERVED, BLOCKS))
        assert all(self.kv.pool.refs(block) == count for block, count in held.items())
        assert all(self.kv.pool.refs(block) == 0 for block in free)

    def _write(self, sequence: KVSequence, start: int, end: int) -> None:
        for position in range(start, end):
            index = position // SIZE
            block = sequence.blocks[index]
            assert self.kv.pool.refs(block) == 1, "written to while others hold it"
            self.written[block] = (
                tuple(sequence.tokens(0, min(end, (index + 1) * SIZE))),
                self.salts[sequence.request_id],
            )


TestUse = Use.TestCase
TestUse.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
