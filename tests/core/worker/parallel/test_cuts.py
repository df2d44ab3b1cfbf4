"""A cut takes what indexing takes: rows where they lie, and of scattered columns a copy."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from enginebay.worker.parallel.cuts import Cut


@given(st.data())
def test_what_is_taken_is_what_indexing_takes(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    dim = -data.draw(st.integers(1, len(shape)))
    bounds = st.tuples(st.integers(0, shape[dim]), st.integers(0, shape[dim])).map(sorted)
    ranges = tuple(range(*data.draw(bounds)) for _ in range(data.draw(st.integers(1, 3))))
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    cut = Cut(dim, ranges)
    index = torch.tensor([i for part in ranges for i in part], dtype=torch.int64)
    assert torch.equal(cut.take(whole), whole.index_select(dim, index))
    assert cut.shape(shape) == cut.take(whole).shape
    assert cut.take(whole).is_contiguous()
    middle = data.draw(st.integers(0, shape[dim]))
    parts = [cut.within(0, middle), cut.within(middle, shape[dim])]
    assert sum(part.length for part in parts) == cut.length


def test_rows_stay_where_they_are_and_columns_are_copied() -> None:
    whole = torch.arange(24).view(4, 6)
    rows, columns = Cut.of(-2, range(1, 3)).take(whole), Cut.of(-1, range(1, 3)).take(whole)
    assert rows.data_ptr() == whole[1].data_ptr()
    assert columns.untyped_storage().nbytes() == 4 * 2 * 8, "nothing of the whole is kept"
