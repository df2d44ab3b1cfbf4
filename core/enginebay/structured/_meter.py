"""How long one answer's masks take: too long, and its own request ends, since all requests of a step wait for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["BEFOREHAND_SECONDS", "FIRST_MASK_SECONDS", "MASK_SECONDS", "Meter"]

FIRST_MASK_SECONDS: Final = 0.1
"""Of computing, for an answer's first mask, in the child: a shape that takes longer is refused."""
MASK_SECONDS: Final = 0.005
"""For each of an answer's masks, and what is drawn by it, on the average.

Usual shapes take 0.02 to 0.15 ms of it as measured, a choice of 1,024 texts, which is short, 1.3 ms.
"""
BEFOREHAND_SECONDS: Final = 1.0
"""Seconds that an answer has beside it, for its longest masks."""

T = TypeVar("T")


class Meter:
    """The time of one answer's masks, and of its copies', by the clock ``now``, seconds of the thread that makes them;
    None: it is not measured."""

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        self._now = now
        self._seconds = 0.0
        self._masks = 0

    def mask(self, work: Callable[[], T]) -> T:
        """What the work returns, which makes one mask."""
        self._masks += 1
        return self.other(work)

    def other(self, work: Callable[[], T]) -> T:
        """What the work returns, which makes none."""
        if self._now is None:
            return work()
        begin = self._now()
        done = work()
        self._seconds += self._now() - begin
        return done

    @property
    def seconds(self) -> float:
        """So far."""
        return self._seconds

    @property
    def fault(self) -> str:
        """Why the answer must end, in one line, or ""."""
        if self._seconds <= BEFOREHAND_SECONDS + MASK_SECONDS * self._masks:
            return ""
        each = self._seconds / max(1, self._masks)
        return f"its {self._masks} masks took {each:.3f} s each, and may take {MASK_SECONDS:g} s on the average"
