"""Fixed rows: each request keeps one for life, and a step's inputs are gathered from the rows. Numpy only.

What a row holds is its blocks, one table per KV group. They are written when they are handed out, so a step in which
every request decodes and none enters a block reads the tables and writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from enginebay.worker.table import Row, ScheduledRow

__all__ = ["Rows", "StepInputs"]

Ids = NDArray[np.int32]
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What one step reads, for T tokens of R requests of which S positions draw.

    ``input_ids``, ``positions``: ``[T]``; ``rows`` ``[S]`` are the tokens whose logits are wanted. By KV group:
    ``slots`` ``[T]`` is where each token's key and value go, ``block_tables`` ``[R, B]`` the blocks of each request
    (behind its last one, any block's id). ``query_starts`` ``[R + 1]`` are where each request's tokens begin,
    ``context_lens`` ``[R]`` how many tokens of it are in the cache after the step.
    """

    input_ids: Longs
    positions: Longs
    rows: Longs
    slots: tuple[Longs, ...]
    block_tables: tuple[Ids, ...]
    query_starts: Ids
    context_lens: Ids

    def of_body(self) -> list[NDArray[np.int32] | NDArray[np.int64]]:
        """All but ``rows``, in the order in which the graph takes them."""
        grouped = [array for pair in zip(self.slots, self.block_tables, strict=True) for array in pair]
        return [self.input_ids, self.positions, *grouped, self.query_starts, self.context_lens]


class Rows:
    """The block tables of all requests that were scheduled and have not been forgotten."""

    def __init__(self, groups: int, block_size: int, *, rows: int = 16, blocks: int = 16) -> None:
        """``groups``: KV groups; ``rows`` and ``blocks`` are what there is room for at first, and it grows."""
        self._block_size = block_size
        self._tables: list[Ids] = [np.zeros((rows, blocks), dtype=np.int32) for _ in range(groups)]
        self._free = list(range(rows - 1, -1, -1))
        self._held: dict[str, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Give the rows of these requests to others. One that has no row is passed over."""
        for request_id in request_ids:
            held = self._held.pop(request_id, None)
            if held is not None:
                self._free.append(held.index)

    def clear(self) -> None:
        """Forget every request."""
        self.forget(list(self._held))

    def inputs(self, scheduled: Sequence[ScheduledRow], wanted: Sequence[int] | None = None) -> StepInputs:
        """The inputs of a step. ``wanted``: tokens of the step whose logits are wanted; None: those behind which is
        drawn.
        """
        rows = [part.row for part in scheduled]
        indices = np.array([self._row(row) for row in rows], dtype=np.int64)
        counts = np.array([part.num_tokens for part in scheduled], dtype=np.int64)
        starts = np.array([row.num_computed_tokens for row in rows], dtype=np.int64)
        ends = counts.cumsum()
        total = int(ends[-1]) if len(scheduled) else 0
        if total == len(scheduled):
            owners, positions = indices, starts
            ids = np.array([row.token_ids[row.num_computed_tokens] for row in rows], dtype=np.int64)
        else:
            owners = indices.repeat(counts)
            positions = np.arange(total, dtype=np.int64) + (starts + counts - ends).repeat(counts)
            ids = np.fromiter((token for part in scheduled for token in part.token_ids), np.int64, total)
        lengths = starts + counts
        blocks = -(-int(lengths.max(initial=0)) // self._block_size)
        numbers, offsets = np.divmod(positions, self._block_size)
        return StepInputs(
            input_ids=ids,
            positions=positions,
            rows=_drawn(scheduled, ends) if wanted is None else np.asarray(wanted, dtype=np.int64),
            slots=tuple(table[owners, numbers].astype(np.int64) * self._block_size + offsets for table in self._tables),
            block_tables=tuple(table[indices, :blocks] for table in self._tables),
            query_starts=np.concatenate(([0], ends)).astype(np.int32),
            context_lens=lengths.astype(np.int32),
        )

    def _row(self, row: Row) -> int:
        held = self._held.get(row.request_id)
        if held is None:
            held = self._held[row.request_id] = _Held(self._take(), row.block_ids, [0] * len(self._tables))
        elif held.block_ids is not row.block_ids:  # replaced when it was resumed
            held.block_ids, held.written = row.block_ids, [0] * len(self._tables)
        for group, blocks in enumerate(row.block_ids):
            written = held.written[group]
            if len(blocks) > written:
                self._write(group, held.index, written, blocks)
                held.written[group] = len(blocks)
        return held.index

    def _write(self, group: int, index: int, begin: int, blocks: Sequence[int]) -> None:
        table = self._tables[group]
        if len(blocks) > table.shape[1]:
            wider = np.zeros((len(table), max(len(blocks), 2 * table.shape[1])), dtype=np.int32)
            wider[:, : table.shape[1]] = table
            self._tables[group] = table = wider
        table[index, begin : len(blocks)] = blocks[begin:]

    def _take(self) -> int:
        if not self._free:
            count = len(self._tables[0])
            self._tables = [np.concatenate((table, np.zeros_like(table))) for table in self._tables]
            self._free = list(range(2 * count - 1, count - 1, -1))
        return self._free.pop()


@dataclass(slots=True)
class _Held:
    """One request's row: its number, the lists it was written from, and how much of each is written."""

    index: int
    block_ids: list[list[int]]
    written: list[int]


def _drawn(scheduled: Sequence[ScheduledRow], ends: Longs) -> Longs:
    """The tokens behind which is drawn: of each row that reaches its end the last one, and one more per proposal."""
    if not any(part.draft_token_ids for part in scheduled):
        last: Longs = ends[np.array([part.samples for part in scheduled], dtype=np.bool_)] - 1
        return last
    return np.fromiter(
        (
            token
            for part, end in zip(scheduled, ends.tolist(), strict=True)
            if part.samples
            for token in range(end - 1 - len(part.draft_token_ids), end)
        ),
        np.int64,
    )
