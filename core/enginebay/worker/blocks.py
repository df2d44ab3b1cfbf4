"""Who holds the blocks of a KV cache, and who fills them: what a schedule says of blocks is held against it.

By their numbers a runner reaches into memory, and a block that two requests write to gives both of them wrong tokens.
A request is told of its blocks once, so they are looked at once; a step that enters no block costs nothing.

In a group that sees everything, a request keeps its blocks until it ends or gives way, so a block that somebody holds
is nobody else's to write to. In one with a window blocks come back without a word, so there the newest one has a block:
it may be given to somebody as soon as its last one has filled it, and sees it no more. The null block, which stands in
such a table for those that came back, is one like others here: two that write to it are refused as with any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from enginebay.worker.row import ANY_ROOM, Row

__all__ = ["BlockBook"]


@final
class BlockBook:
    """Blocks 0 to ``num_blocks`` - 1, in groups of these block sizes and ``windows`` (in tokens, None: all are seen).

    Without groups nothing is known, and all is taken; with ``windows`` None, every group may have one.
    """

    def __init__(
        self, num_blocks: int = 0, block_sizes: Sequence[int] = (), windows: Sequence[int | None] | None = None
    ) -> None:
        assert windows is None or len(windows) == len(block_sizes), "each group has a window, or None"
        self._num_blocks = num_blocks
        self._sizes = tuple(block_sizes)
        self._windows = tuple(windows) if windows is not None else (None,) * len(self._sizes)
        self._full = tuple(windows is not None and window is None for window in self._windows)
        self.clear()

    def clear(self) -> None:
        """Nobody holds anything."""
        self._holders = [0] * self._num_blocks if any(self._full) else []
        self._fillers: list[tuple[Row, int, int] | None] = [] if all(self._full) else [None] * self._num_blocks
        """Of each block that was given out in a group with a window, whose it is, in which group, and its place."""

    def give(self, row: Row, told: Sequence[Sequence[int]]) -> str:
        """A request is told of these blocks more, one sequence per group; returns why it cannot have them, or ""."""
        sizes, tables = self._sizes, row.block_ids
        groups = len(sizes) or len(tables)
        if not len(told) == len(tables) == groups:
            return f"is given blocks of {len(told)} groups, and the cache has {groups}"
        room = ANY_ROOM
        for group, more in enumerate(told):
            blocks = tables[group]
            if sizes:
                if more and (fault := self._note(row, group, len(blocks), more)):
                    return fault
                room = min(room, sizes[group] * (len(blocks) + len(more)))
            blocks.extend(more)
        row.room = room
        return ""

    def leave(self, row: Row) -> None:
        """A request has ended, or given way: it holds none of its blocks any more."""
        holders, fillers = self._holders, self._fillers
        for full, blocks in zip(self._full, row.block_ids, strict=False):
            for block in blocks:
                if full:
                    holders[block] -= 1
                elif (filler := fillers[block]) is not None and filler[0] is row:
                    fillers[block] = None

    def _note(self, row: Row, group: int, place: int, more: Sequence[int]) -> str:
        """Note blocks of one group, from this place on; those that stand before what is computed are only read."""
        full, holders, fillers = self._full[group], self._holders, self._fillers
        first, end = row.num_computed_tokens // self._sizes[group], self._num_blocks
        if full and place < first and len({*more[: first - place]}) < min(first - place, len(more)):
            return "is given one block for several places"
        for block in more:
            if not 0 <= block < end:
                return f"is given block {block}, and the cache has blocks 0 to {end - 1}"
            if place >= first:
                if holders and holders[block]:
                    return f"is to write to block {block}, which it or another request holds"
                if fillers:
                    if (filler := fillers[block]) is not None and self._needs(*filler):
                        return f"is to write to block {block}, which request {filler[0].request_id!r} has"
                    if not full:
                        fillers[block] = row, group, place
            if full:
                holders[block] += 1
            place += 1
        return ""

    def _needs(self, row: Row, group: int, place: int) -> bool:
        """Whether a request has yet to fill its block at this place, or to look at it."""
        computed, size, window = row.num_computed_tokens + row.unsure, self._sizes[group], self._windows[group]
        if window is None:
            return (place + 1) * size > computed
        return place >= max(0, computed - window + 1) // size
