"""The layout of a step is plain arithmetic: compared with the most naive reading of the same words."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from enginebay_runner_v1.batch import PADDING, Chunk, lay_out, lay_out_tokens


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Chunk], int, int | None]:
    """Chunks with blocks of their own, dealt out in any order; a block size; a window or none."""
    size = draw(st.sampled_from([1, 4, 16]))
    spans = draw(st.lists(st.tuples(st.integers(0, 80), st.integers(1, 20)), min_size=1, max_size=12))
    spans = [(start, count if draw(st.booleans()) else 1) for start, count in spans]
    needed = [-(-(start + count) // size) for start, count in spans]
    blocks = draw(st.permutations(range(sum(needed))))
    chunks, used = [], 0
    for (start, count), number in zip(spans, needed, strict=True):
        chunks.append(Chunk(start, count, blocks[used : used + number]))
        used += number
    return chunks, size, draw(st.none() | st.integers(1, 40))


@given(batches())
def test_every_token_has_its_slot(batch: tuple[list[Chunk], int, int | None]) -> None:
    chunks, size, window = batch
    naive = [c.block_ids[p // size] * size + p % size for c in chunks for p in range(c.start, c.stop)]
    assert lay_out(chunks, size, window).slots.tolist() == naive


@given(batches())
def test_blocks_that_are_entered_and_not_filled(batch: tuple[list[Chunk], int, int | None]) -> None:
    chunks, size, window = batch
    naive = [
        block
        for c in chunks
        for index, block in enumerate(c.block_ids)
        if c.start <= index * size < c.stop < (index + 1) * size
    ]
    assert lay_out(chunks, size, window).entered.tolist() == naive


@given(batches())
def test_every_token_is_in_one_part(batch: tuple[list[Chunk], int, int | None]) -> None:
    chunks, size, window = batch
    layout = lay_out(chunks, size, window)
    covered = [int(t) for group in layout.decodes for t in group.tokens]
    assert len(covered) == sum(c.count == 1 for c in chunks)
    for row in layout.prefills:
        covered.extend(range(row.begin, row.end))
    assert sorted(covered) == list(range(sum(c.count for c in chunks)))


@given(batches())
def test_each_row_reads_its_own_blocks_and_all_that_it_sees(batch: tuple[list[Chunk], int, int | None]) -> None:
    chunks, size, window = batch
    layout = lay_out(chunks, size, window)
    begins = np.cumsum([0, *(c.count for c in chunks)])
    owner = {int(begin): chunk for begin, chunk in zip(begins, chunks, strict=False)}
    for group in layout.decodes:
        for token, blocks, first, stop in zip(group.tokens, group.blocks, group.first, group.stops, strict=True):
            chunk = owner[int(token)]
            assert stop == chunk.stop
            seen = range(0 if window is None else max(0, chunk.start - window + 1), chunk.stop)
            assert first <= seen.start
            read = {int(first) + i * size + o: int(b) for i, b in enumerate(blocks) for o in range(size)}
            assert all(read[p] == chunk.block_ids[p // size] for p in seen)
            assert set(blocks.tolist()) <= set(chunk.block_ids)
    for row in layout.prefills:
        chunk = owner[row.begin]
        assert (row.start, row.stop, row.end - row.begin) == (chunk.start, chunk.stop, chunk.count)
        if chunk.start == 0:
            assert (row.first, len(row.blocks)) == (0, 0)
        else:
            assert row.first % size == 0
            assert row.first <= (0 if window is None else max(0, chunk.start - window + 1))
            assert row.blocks.tolist() == list(chunk.block_ids[row.first // size : -(-chunk.stop // size)])


@given(batches())
def test_padding_is_bounded(batch: tuple[list[Chunk], int, int | None]) -> None:
    chunks, size, window = batch
    for group in lay_out(chunks, size, window).decodes:
        needed = -(-(group.stops - group.first) // size)
        assert group.blocks.shape[1] == needed.max()
        assert group.blocks.size - needed.sum() <= PADDING * group.blocks.size


def test_positions_and_last_tokens() -> None:
    positions, last = lay_out_tokens([(0, 3), (7, 1), (2, 2)])
    assert positions.tolist() == [0, 1, 2, 7, 2, 3]
    assert last.tolist() == [2, 3, 5]


def test_an_empty_step() -> None:
    layout = lay_out([], 16, None)
    assert (layout.slots.size, layout.entered.size, layout.decodes, layout.prefills) == (0, 0, (), ())
