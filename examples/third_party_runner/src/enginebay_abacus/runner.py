"""The runner: every token leaves a word in the KV cache, and the next token is reckoned from all words found there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from enginebay.interfaces import ModelRunner, NoOptions, RunnerContext
from enginebay.messages import KVCacheGroup, KVCacheSpec, ModelRunnerOutput, SchedulerOutput
from enginebay.worker import RequestTable
from enginebay.worker.noise import draw_key, noise_bits
from enginebay_abacus.memory import CheckedMemory, Words

WORD_BYTES = 8


def words_of(token_ids: Sequence[int], start: int) -> Words:
    """The word that each token leaves at its position, from ``start`` on."""
    positions = np.arange(start, start + len(token_ids), dtype=np.uint64)
    return noise_bits(1, noise_bits(2, np.asarray(token_ids, dtype=np.uint64)) ^ positions)


def reckon(words: Words, vocab_size: int, key: int = 0) -> int:
    """The token that follows these words. ``key`` is 0 for greedy, else the key of a random draw."""
    total = words.sum(dtype=np.uint64, keepdims=True) ^ np.uint64(key)
    return int(noise_bits(3, total)[0] % np.uint64(vocab_size))


def answer(prompt: Sequence[int], max_tokens: int, vocab_size: int) -> list[int]:
    """What the runner must generate greedily, reckoned from the tokens instead of from the cache."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(reckon(words_of(tokens, 0), vocab_size))
    return tokens[len(prompt) :]


class Abacus(ModelRunner[NoOptions]):
    """Any model folder will do: only the size of its vocabulary matters."""

    def __init__(self, context: RunnerContext[NoOptions]) -> None:
        super().__init__(context)
        self.table = RequestTable()
        self._memory: CheckedMemory | None = None
        self._generation = 0

    def load_model(self) -> None:
        """Nothing to load."""

    def kv_cache_spec(self) -> KVCacheSpec:
        """One word a token, in one group."""
        size = self.context.block_size
        return KVCacheSpec(groups=(KVCacheGroup(layers=(0,), block_size=size, bytes_per_block=size * WORD_BYTES),))

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Make the memory."""
        self._memory = CheckedMemory(num_blocks, self.context.block_size)

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Write the words of the step's tokens, then reckon a token for each request that reached its end."""
        memory = self._memory
        assert memory is not None, "a step before initialize_kv_cache"
        if scheduler_output.generation != self._generation:  # the steps before are void: every request comes anew
            self._generation = scheduler_output.generation
            memory.clear()
        for request_id in (*scheduler_output.finished, *scheduler_output.preempted):
            memory.release(request_id)
        rows = self.table.begin_step(scheduler_output)
        for part in rows:
            row, start = part.row, part.row.num_computed_tokens
            words = words_of(row.token_ids[start : start + part.num_tokens], start)
            memory.write(row.request_id, row.block_ids[0], start, words)
        sampled: dict[str, tuple[int]] = {}
        for part in rows:
            if part.samples:
                row, known = part.row, len(part.row.token_ids)
                words = memory.read(row.request_id, row.block_ids[0], known)
                key = draw_key(row.seed, row.choice, known) if row.params.temperature > 0 else 0
                sampled[row.request_id] = (reckon(words, self.context.model.vocab_size, key),)
        return self.table.finish_step(sampled)

    def in_force(self) -> dict[str, str]:
        """What runs."""
        return {"execution": "reckoned from the KV cache, no model"}

    def close(self) -> None:
        """Drop the memory."""
        self._memory = None
