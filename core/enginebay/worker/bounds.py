"""The blocks that a KV cache has. Schedules are held against it: by their numbers a runner reaches into memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["ANY_ROOM", "BlockBounds"]

ANY_ROOM: Final = 1 << 62


class BlockBounds(NamedTuple):
    """Blocks 0 to ``num_blocks`` - 1, in groups of these block sizes. Without groups nothing is known, and all is
    taken."""

    num_blocks: int = 0
    block_sizes: tuple[int, ...] = ()

    def fault(self, num_groups: int, told: Sequence[Sequence[int]]) -> str:
        """Why a request cannot have these blocks more, in ``num_groups`` groups; "" when it can."""
        groups = len(self.block_sizes) or num_groups
        if not len(told) == num_groups == groups:
            return f"is given blocks of {len(told)} groups, and the cache has {groups}"
        if not self.block_sizes:
            return ""
        for block in (block for group in told for block in group):
            if not 0 <= block < self.num_blocks:
                return f"is given block {block}, and the cache has blocks 0 to {self.num_blocks - 1}"
        return ""

    def room(self, block_ids: Sequence[Sequence[int]]) -> int:
        """How many positions a request's blocks hold."""
        if not self.block_sizes:
            return ANY_ROOM
        return min(size * len(blocks) for size, blocks in zip(self.block_sizes, block_ids, strict=True))
