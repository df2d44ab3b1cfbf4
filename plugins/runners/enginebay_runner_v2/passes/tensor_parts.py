"""Which part of a tensor a tensor rank has, and where that part is when the tensor is looked at in another way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Part", "viewed"]


@dataclass(frozen=True, slots=True)
class Part:
    """The indexes from ``begin`` to before ``end`` of the dimension ``dim``, which has ``whole`` of them in all."""

    dim: int
    whole: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """How many there are here."""
        return self.end - self.begin

    def at(self, dim: int) -> Part:
        """The same indexes where the dimension has another place."""
        return replace(self, dim=dim)

    def of(self, dim: int, whole: int) -> Part | None:
        """The same share of a dimension of another size; None where that is no whole number of indexes."""
        begin, end = self.begin * whole, self.end * whole
        if begin % self.whole or end % self.whole:
            return None
        return Part(dim, whole, begin // self.whole, end // self.whole)

    def words(self) -> str:
        """For an error."""
        return f"{self.begin} to {self.end} of {self.whole} in dimension {self.dim}"


def viewed(part: Part, before: Sequence[Any], after: Sequence[Any]) -> Part | None:
    """Where the part is when a tensor of shape ``before`` is viewed in shape ``after``; None: in no one dimension.

    Sizes that differ from step to step are symbols, and are the same where their words are.
    """
    for own, theirs in _groups(_numbers(before, after), _numbers(after, before)):
        if part.dim in own:
            return part.of(theirs[0], int(after[theirs[0]])) if own[0] == part.dim and theirs else None
    return None


_PRIMES = (1_000_003, 1_000_033, 1_000_037, 1_000_039, 1_000_081, 1_000_099, 1_000_117, 1_000_121)
"""Sizes that no dimension has, for the symbols."""


def _numbers(sizes: Sequence[Any], others: Sequence[Any]) -> list[int]:
    symbols = sorted({str(size) for size in (*sizes, *others) if not isinstance(size, int)})
    stand_ins = dict(zip(symbols, _PRIMES, strict=False))
    return [size if isinstance(size, int) else stand_ins.get(str(size), 0) for size in sizes]


def _groups(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Dimensions, those of 1 left out, that hold the same numbers in both; ends where they are not the same."""
    own = [dim for dim, size in enumerate(before) if size != 1]
    theirs = [dim for dim, size in enumerate(after) if size != 1]
    while own and theirs:
        mine, other = [own.pop(0)], [theirs.pop(0)]
        have, want = before[mine[0]], after[other[0]]
        while have != want:
            if have < want and own:
                mine.append(own.pop(0))
                have *= before[mine[-1]]
            elif have > want and theirs:
                other.append(theirs.pop(0))
                want *= after[other[-1]]
            else:
                return
        yield mine, other
