"""The longest beginning that every group has what it needs of: where groups differ, in windows or in what was evicted.

A group that sees everything needs all blocks of the beginning. One with a window needs those of the last window alone,
since the tokens that come after see nothing before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from enginebay.kvcache._shape import GroupSpec

Find = Callable[[int, int], int | None]
"""The block of a group (by its place) at an index of the text, or None."""


def common_blocks(groups: Sequence[GroupSpec], most: int, find: Find) -> int:
    """How many leading blocks, of at most ``most``, are a beginning that all groups can go on from."""
    count = _with_all(groups, most, find)
    windowed = [(place, group) for place, group in enumerate(groups) if group.window is not None]
    return _with_windows(windowed, count, find) if windowed else count


def _with_all(groups: Sequence[GroupSpec], most: int, find: Find) -> int:
    """The leading blocks that every group without a window has."""
    whole = [place for place, group in enumerate(groups) if group.window is None]
    for index in range(most if whole else 0):
        for place in whole:
            if find(place, index) is None:
                return index
    return most


def _with_windows(windowed: Sequence[tuple[int, GroupSpec]], most: int, find: Find) -> int:
    """The longest beginning whose last window each of these groups has: from the end, each block looked at once.

    A missing block ends every beginning that needs it, so the next candidate ends before it.
    """
    end = index = most
    while end:
        starts = [(place, group.first_seen(end * group.block_size)) for place, group in windowed]
        lowest = min(start for _, start in starts)
        index = end - 1
        while index >= lowest and all(start > index or find(place, index) is not None for place, start in starts):
            index -= 1
        if index < lowest:
            return end
        end = index
    return 0
