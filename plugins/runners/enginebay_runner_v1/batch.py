"""The layout of one step's batch: which token stands where, which cache slot it fills, what it attends to.

Plain arithmetic on numpy arrays. All tokens of the step lie in one sequence of T tokens, request after request. A row
with one token is a *decode row*: it is computed together with others of a like length, in a padded group. A row with
more is a *prefill row*, computed alone. Where a layer has a window, only the blocks that it can see are listed: those
before may have been given back, and hold what is another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

__all__ = ["Chunk", "DecodeGroup", "PrefillRow", "StepLayout", "lay_out", "lay_out_tokens", "number_blocks"]

PADDING = 0.25
"""Share of a decode group's blocks that may be padding, before a shorter row starts a group of its own."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One request's part of a step: tokens ``start`` to ``start + count`` of it, in these blocks."""

    start: int
    count: int
    block_ids: Sequence[int] | Ints

    @property
    def stop(self) -> int:
        """How many tokens of the request are in the cache after the step."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows of one token each. ``tokens`` [R]: their index in the step; ``blocks`` [R, B]: padded with the first that
    the row sees, so that it never reads another's; ``first`` [R]: position of the first listed block's first token;
    ``stops`` [R]: tokens in the cache, the own included."""

    tokens: Ints
    blocks: Ints
    first: Ints
    stops: Ints


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """One request's chunk of several tokens: ``begin`` to ``end`` in the step, ``start`` to ``stop`` in the request.

    ``blocks`` [B] from position ``first`` on; empty when the chunk is the request's beginning: nothing to read back.
    In tiles (``tiled``) they are listed always, as whole tiles: padded with the first that the row sees.
    """

    begin: int
    end: int
    start: int
    stop: int
    first: int
    blocks: Ints
    tiled: bool = False


@dataclass(frozen=True, slots=True)
class StepLayout:
    """The step as the layers of one window see it. ``slots`` [T]: block * block_size + offset of each token;
    ``entered``: blocks whose first slot is written in this step and whose last is not: the rest holds nothing valid."""

    slots: Ints
    entered: Ints
    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillRow, ...]


def number_blocks(
    spans: Sequence[tuple[int, int]], block_ids: Sequence[Sequence[Sequence[int]]], block_size: int
) -> tuple[list[Chunk], list[Ints]]:
    """The chunks of spans (start, count) over blocks that are numbered through the step, and for each group its block
    ids by these numbers: a layout is then made once for all groups of one window.

    ``block_ids``: for each span, its blocks in each group.
    """
    chunks, counts, begin = [], [], 0
    for start, count in spans:
        number = -(-(start + count) // block_size)
        chunks.append(Chunk(start, count, np.arange(begin, begin + number)))
        counts.append(number)
        begin += number
    tables = [
        np.concatenate([np.asarray(ids[:number], dtype=np.int64) for ids, number in zip(group, counts, strict=True)])
        for group in zip(*block_ids, strict=True)
    ]
    return chunks, tables


def lay_out_tokens(spans: Sequence[tuple[int, int]]) -> tuple[Ints, Ints]:
    """Positions [T] of the step's tokens, and the index in the step of each request's last one, from (start, count)."""
    counts = np.array([count for _, count in spans], dtype=np.int64)
    ends = np.cumsum(counts)
    starts = np.array([start for start, _ in spans], dtype=np.int64)
    positions = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(starts - (ends - counts), counts)
    return positions, ends - 1


def lay_out(chunks: Sequence[Chunk], block_size: int, window: int | None, tile_blocks: int | None = None) -> StepLayout:
    """The layout of chunks in batch order. ``window``: tokens that a token sees, its own included.

    ``tile_blocks``: lists of blocks begin and end at multiples of so many, and prefill rows always have one.
    """
    slots: list[Ints] = []
    entered: list[int] = []
    singles: list[tuple[int, Chunk]] = []
    prefills: list[PrefillRow] = []
    begin = 0
    for chunk in chunks:
        assert chunk.count > 0, "a scheduled request has at least one token"
        assert chunk.stop <= len(chunk.block_ids) * block_size, "a token without a block"
        positions = np.arange(chunk.start, chunk.stop, dtype=np.int64)
        blocks = np.asarray(chunk.block_ids, dtype=np.int64)
        slots.append(blocks[positions // block_size] * block_size + positions % block_size)
        if chunk.stop % block_size and chunk.stop // block_size * block_size >= chunk.start:
            entered.append(int(blocks[chunk.stop // block_size]))
        if chunk.count == 1:
            singles.append((begin, chunk))
        else:
            prefills.append(_prefill_row(begin, chunk, blocks, block_size, window, tile_blocks))
        begin += chunk.count
    return StepLayout(
        slots=np.concatenate(slots) if slots else np.zeros(0, dtype=np.int64),
        entered=np.array(entered, dtype=np.int64),
        decodes=tuple(_decode_groups(singles, block_size, window, tile_blocks or 1)),
        prefills=tuple(prefills),
    )


def _first_block(position: int, block_size: int, window: int | None, tile_blocks: int) -> int:
    """The first block of the first tile that a token at ``position`` can see."""
    if window is None:
        return 0
    return max(0, position - window + 1) // block_size // tile_blocks * tile_blocks


def _prefill_row(
    begin: int, chunk: Chunk, blocks: Ints, block_size: int, window: int | None, tile_blocks: int | None
) -> PrefillRow:
    first = _first_block(chunk.start, block_size, window, tile_blocks or 1)
    seen = blocks[first : -(-chunk.stop // block_size)] if chunk.start > 0 or tile_blocks else blocks[:0]
    if tile_blocks:
        hidden = _first_block(chunk.start, block_size, window, 1) - first
        own = seen[hidden : hidden + 1]
        seen = np.concatenate((np.repeat(own, hidden), seen[hidden:], np.repeat(own, -len(seen) % tile_blocks)))
    return PrefillRow(
        begin=begin,
        end=begin + chunk.count,
        start=chunk.start,
        stop=chunk.stop,
        first=first * block_size if chunk.start > 0 else 0,
        blocks=seen,
        tiled=tile_blocks is not None,
    )


def _decode_groups(
    singles: list[tuple[int, Chunk]], block_size: int, window: int | None, tile_blocks: int
) -> list[DecodeGroup]:
    """Rows by falling number of blocks, cut where the padding would grow beyond ``PADDING``."""
    rows: list[tuple[int, int, int, Chunk]] = []
    for token, chunk in singles:
        first = _first_block(chunk.start, block_size, window, tile_blocks)
        rows.append((-(-chunk.stop // block_size) - first, first, token, chunk))
    rows.sort(key=lambda row: (-row[0], row[2]))
    groups: list[DecodeGroup] = []
    begin, used = 0, 0
    for index, row in enumerate(rows):
        used += row[0]
        width = rows[begin][0]
        last = index + 1 == len(rows)
        if last or (index + 1 - begin) * width + width - used - rows[index + 1][0] > PADDING * width * (
            index + 2 - begin
        ):
            padded = -(-width // tile_blocks) * tile_blocks
            groups.append(_decode_group(rows[begin : index + 1], padded, block_size, window))
            begin, used = index + 1, 0
    return groups


def _decode_group(
    rows: list[tuple[int, int, int, Chunk]], width: int, block_size: int, window: int | None
) -> DecodeGroup:
    table = np.empty((len(rows), width), dtype=np.int64)
    for index, (count, first, _, chunk) in enumerate(rows):
        hidden = _first_block(chunk.start, block_size, window, 1) - first
        table[index, :count] = chunk.block_ids[first : first + count]
        table[index, :hidden] = table[index, count:] = table[index, hidden]
    return DecodeGroup(
        tokens=np.array([token for _, _, token, _ in rows], dtype=np.int64),
        blocks=table,
        first=np.array([first * block_size for _, first, _, _ in rows], dtype=np.int64),
        stops=np.array([chunk.stop for _, _, _, chunk in rows], dtype=np.int64),
    )
