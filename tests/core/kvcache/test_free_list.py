"""The free list against a plain list, and its cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.kvcache._free_list import FreeList

SIZE = 8


@given(st.lists(st.tuples(st.sampled_from(["append", "append_left", "pop_left", "remove"]), st.integers(0, SIZE - 1))))
def test_behaves_as_a_list_does(operations: list[tuple[str, int]]) -> None:  # K6
    ring, model = FreeList(SIZE), list[int]()
    for name, block in operations:
        if name == "pop_left" and model:
            assert ring.pop_left() == model.pop(0)
        elif name == "remove" and block in model:
            ring.remove(block)
            model.remove(block)
        elif name == "append" and block not in model:
            ring.append(block)
            model.append(block)
        elif name == "append_left" and block not in model:
            ring.append_left(block)
            model.insert(0, block)
        assert list(ring) == model
        assert len(ring) == len(model)
        assert [b in ring for b in range(SIZE)] == [b in model for b in range(SIZE)]


class _Counted(list[int]):
    """A list that counts how often it is read and written."""

    touched = 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # both forms of list's own
        self.touched += 1
        return super().__getitem__(index)

    def __setitem__(self, index, value):  # type: ignore[no-untyped-def]  # both forms of list's own
        self.touched += 1
        super().__setitem__(index, value)


@pytest.mark.parametrize("operation", ["append", "append_left", "pop_left", "remove"])
def test_each_operation_costs_the_same_at_any_length(operation: str) -> None:  # K6
    costs = []
    for size in (8, 80_000):
        ring = FreeList(size)
        for block in range(size):
            ring.append(block)
        ring.remove(size // 2 + 1)
        ring._next, ring._prev = _Counted(ring._next), _Counted(ring._prev)
        out = size // 2 + 1
        calls: dict[str, tuple[Callable[..., object], tuple[int, ...]]] = {
            "append": (ring.append, (out,)),
            "append_left": (ring.append_left, (out,)),
            "pop_left": (ring.pop_left, ()),
            "remove": (ring.remove, (size // 2,)),
        }
        call, arguments = calls[operation]
        call(*arguments)
        costs.append(ring._next.touched + ring._prev.touched)
    assert costs[0] == costs[1] < 15


@pytest.mark.parametrize(("start", "size"), [(0, 0), (0, 1), (0, 5), (2, 5), (4, 5), (5, 5)])
def test_a_whole_range_is_as_if_each_had_been_appended(start: int, size: int) -> None:
    ring, appended = FreeList.of(start, size), FreeList(size)
    for block in range(start, size):
        appended.append(block)
    assert vars(ring) == vars(appended)


def test_misuse_is_caught() -> None:
    ring = FreeList(2)
    ring.append(0)
    with pytest.raises(AssertionError, match="block 0 is free already"):
        ring.append(0)
    with pytest.raises(AssertionError, match="block 1 is not free"):
        ring.remove(1)
    ring.pop_left()
    with pytest.raises(AssertionError, match="the free list is empty"):
        ring.pop_left()
