"""A KV cache that remembers who wrote what: reading an unwritten slot, or writing into another's block, is an error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]


class CheckedMemory:
    """``num_blocks`` blocks of ``block_size`` slots, one 64-bit word a slot. Requests are known by their ids."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._words = np.zeros((num_blocks, block_size), dtype=np.uint64)
        self._written = np.zeros((num_blocks, block_size), dtype=np.bool_)
        self._owner: dict[int, str] = {}
        self._owned: dict[str, list[int]] = {}

    def write(self, request_id: str, blocks: Sequence[int], start: int, words: Words) -> None:
        """Put words at the request's positions from ``start`` on. Entering a block forgets what stood in it."""
        stop = start + len(words)
        done = 0
        for index in range(start // self.block_size, -(-stop // self.block_size)):
            block = blocks[index]
            owner = self._owner.get(block)
            if owner is None:
                self._owner[block] = request_id
                self._owned.setdefault(request_id, []).append(block)
            elif owner != request_id:
                raise AssertionError(f"{request_id} writes into block {block}, which is {owner}'s, and {owner} is live")
            first = start - index * self.block_size if done == 0 else 0
            count = min(self.block_size - first, len(words) - done)
            if first == 0:
                self._written[block] = False
            self._words[block, first : first + count] = words[done : done + count]
            self._written[block, first : first + count] = True
            done += count

    def read(self, request_id: str, blocks: Sequence[int], stop: int) -> Words:
        """The words at positions 0 to ``stop`` of a request, whoever wrote them."""
        used = np.asarray(blocks[: -(-stop // self.block_size)], dtype=np.int64)
        written = self._written[used].reshape(-1)[:stop]
        if not written.all():
            position = int(written.argmin())
            block = int(used[position // self.block_size])
            raise AssertionError(f"{request_id} reads position {position} in block {block}, which nobody wrote")
        return self._words[used].reshape(-1)[:stop]

    def clear(self) -> None:
        """Forget everything: nobody owns a block, and nothing is written."""
        self._written[:] = False
        self._owner.clear()
        self._owned.clear()

    def release(self, request_id: str) -> None:
        """The request ended or was preempted: its blocks may be written by others, and still be read (prefix hits)."""
        for block in self._owned.pop(request_id, ()):
            del self._owner[block]
