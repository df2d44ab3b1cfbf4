"""The pool: reference counts, the free list, and the index from a block's content to the block.

A free block keeps its content and its name until it is handed out again, so a cached block is free and findable at
once. Blocks without a name are handed out first, then cached ones, least recently used first.
"""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.kvcache._events import EventLog
from enginebay.kvcache._free_list import FreeList


class BlockPool:
    """Blocks ``reserved`` to ``num_blocks - 1``; the first ``reserved`` ids are never handed out.

    ``log``, where there is one, is told whose names go.
    """

    def __init__(self, num_blocks: int, reserved: int = 0, log: EventLog | None = None) -> None:
        self._refs = [0] * num_blocks
        self._names: list[bytes | None] = [None] * num_blocks
        self._cached: dict[bytes, int] = {}
        self._free = FreeList.of(reserved, num_blocks)
        self._log = log
        self.num_usable = num_blocks - reserved
        self.evictions = 0

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out now, cached ones among them."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by content."""
        return len(self._cached)

    def free_order(self) -> tuple[int, ...]:
        """The free blocks in the order in which they will be handed out (for tests and for dumps)."""
        return tuple(self._free)

    def refs(self, block: int) -> int:
        """How many requests hold this block."""
        return self._refs[block]

    def find(self, name: bytes) -> int | None:
        """The block of that content. Changes nothing, the order of eviction included."""
        return self._cached.get(name)

    def take(self, count: int) -> list[int]:
        """Hand out ``count`` blocks, forgetting what they held. As many are free."""
        assert count <= len(self._free), f"{count} blocks asked for, {len(self._free)} free"
        free, names, refs = self._free, self._names, self._refs
        taken = []
        for _ in range(count):
            block = free.pop_left()
            if names[block] is not None:
                self._evict(block)
            refs[block] = 1
            taken.append(block)
        return taken

    def share(self, blocks: Sequence[int]) -> None:
        """One more holder for each of these cached blocks; those that were free are so no longer."""
        for block in blocks:
            if self._refs[block] == 0:
                self._free.remove(block)
            self._refs[block] += 1

    def give_back(self, blocks: Sequence[int]) -> None:
        """One holder less for each block of a request, in table order; freed from the last to the first.

        The tail of a prompt is so forgotten before its head, which more requests have in common.
        """
        for block in reversed(blocks):
            refs = self._refs[block] - 1
            assert refs >= 0, f"block {block} was given back twice"
            self._refs[block] = refs
            if refs == 0:
                if self._names[block] is None:
                    self._free.append_left(block)
                else:
                    self._free.append(block)

    def publish(self, block: int, name: bytes) -> bool:
        """From now on this block is found by that content, unless another is: the first block keeps the name."""
        assert self._refs[block] > 0, f"block {block} is named while nobody holds it"
        if name in self._cached:
            return False
        assert self._names[block] is None, f"block {block} has a name already"
        self._cached[name] = block
        self._names[block] = name
        return True

    def _evict(self, block: int) -> None:
        name = self._names[block]
        assert name is not None, "only what is cached can be evicted"
        del self._cached[name]
        self._names[block] = None
        self.evictions += 1
        if self._log is not None:
            self._log.removed(name)

    def forget(self) -> bool:
        """Forget all content. While a block is in use: change nothing, and say False."""
        if len(self._free) != self.num_usable:
            return False
        self._cached.clear()
        self._names = [None] * len(self._names)
        if self._log is not None:
            self._log.cleared()
        return True
