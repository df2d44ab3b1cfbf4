"""Which part of a weight a rank has: ranges of one of its dimensions, and how they are taken from the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["Cut"]


@dataclass(frozen=True, slots=True)
class Cut:
    """``ranges`` of the dimension ``dim``, counted from the end (-1: the last), one behind the other."""

    dim: int
    ranges: tuple[range, ...]

    @classmethod
    def of(cls, dim: int, part: range, unit: int = 1, packs: int = 1, whole: int = 0) -> Cut:
        """``part`` in units of so many indexes. ``packs`` blocks of ``whole`` units each lie behind one another."""
        return cls(
            dim,
            tuple(
                range((pack * whole + part.start) * unit, (pack * whole + part.stop) * unit) for pack in range(packs)
            ),
        )

    @property
    def length(self) -> int:
        """How many indexes are left."""
        return sum(map(len, self.ranges))

    def shape(self, whole: Sequence[int]) -> torch.Size:
        """What a tensor of shape ``whole`` measures when it was cut."""
        shape = list(whole)
        shape[self.dim] = self.length
        return torch.Size(shape)

    def within(self, begin: int, end: int) -> Cut:
        """The cut of the indexes from ``begin`` to ``end`` when these are a tensor of their own."""
        inside = (range(max(part.start, begin), min(part.stop, end)) for part in self.ranges)
        return Cut(self.dim, tuple(range(part.start - begin, part.stop - begin) for part in inside if len(part)))

    def take(self, whole: torch.Tensor) -> torch.Tensor:
        """The part of ``whole``: itself a part of its memory where that is in one piece, else a copy of that alone."""
        parts = [whole.narrow(self.dim, part.start, len(part)) for part in self.ranges]
        taken = parts[0] if len(parts) == 1 else torch.cat(parts, dim=self.dim)
        return taken.contiguous()
