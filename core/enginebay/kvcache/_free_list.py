"""A doubly linked list over block ids, kept in two flat lists: every operation is O(1), in the middle too."""

from __future__ import annotations

from collections.abc import Iterator

_OUT = -1


class FreeList:
    """The ids that are free, in the order in which they will be handed out.

    It holds at most the ids 0 to ``size - 1``, each once. The seat ``size`` is the ring's own: the one between the
    last id and the first.
    """

    def __init__(self, size: int) -> None:
        self._ring = size
        self._next = [_OUT] * size + [size]
        self._prev = [_OUT] * size + [size]
        self._len = 0

    @classmethod
    def of(cls, start: int, size: int) -> FreeList:
        """The ids ``start`` to ``size - 1``, all free, in their order: as if each had been appended, in one sweep."""
        made = cls(size)
        if start < size:
            made._next[start:size] = range(start + 1, size + 1)
            made._prev[start:size] = [size, *range(start, size - 1)]
            made._next[size], made._prev[size] = start, size - 1
            made._len = size - start
        return made

    def __len__(self) -> int:
        return self._len

    def __contains__(self, block: int) -> bool:
        return self._next[block] != _OUT

    def __iter__(self) -> Iterator[int]:
        block = self._next[self._ring]
        while block != self._ring:
            yield block
            block = self._next[block]

    def append(self, block: int) -> None:
        """Put a block at the end: it is handed out last."""
        self._link(self._prev[self._ring], block, self._ring)

    def append_left(self, block: int) -> None:
        """Put a block in front: it is handed out next."""
        self._link(self._ring, block, self._next[self._ring])

    def pop_left(self) -> int:
        """Take the first block. The list is not empty."""
        ring, following = self._ring, self._next
        block = following[ring]
        assert block != ring, "the free list is empty"
        after = following[block]
        following[ring], self._prev[after] = after, ring
        following[block] = self._prev[block] = _OUT
        self._len -= 1
        return block

    def remove(self, block: int) -> None:
        """Take this block out, wherever it stands."""
        assert block != self._ring, "the free list is empty"
        before, after = self._prev[block], self._next[block]
        assert after != _OUT, f"block {block} is not free"
        self._next[before] = after
        self._prev[after] = before
        self._next[block] = self._prev[block] = _OUT
        self._len -= 1

    def _link(self, before: int, block: int, after: int) -> None:
        assert self._next[block] == _OUT, f"block {block} is free already"
        self._next[before] = block
        self._prev[block] = before
        self._next[block] = after
        self._prev[after] = block
        self._len += 1
