"""Looking for an answer before sleeping: it often comes sooner than the kernel can wake who sleeps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Moment"]

_MOST_LEFT_OUT: Final = 255
_RESTS: Final = 50
"""So many times as long as others kept the processor: what that costs is a fiftieth of the time."""


class Moment:
    """How long one end of a line looks for what comes back, after it has sent something: once, and then it sleeps.

    ``processors``: of so many, each end of the line has one. On fewer, who looks gives way after each look
    (``sched_yield``): the other end may need this very processor to answer, and has it at once, where one that all have
    left must be woken first. A single one is awake already, so there nobody looks.

    Where others keep the processors busy, and what takes longer to answer, is not worth a look; so each moment in vain
    in a row doubles how many are left out after it, from none after the first: one hiccup says nothing of the next
    answer. Who gives way to what has work of its own may get the processor back after milliseconds, and rests from
    looking in proportion.
    """

    def __init__(self, seconds: float, *, processors: int) -> None:
        self._seconds = seconds
        ours = len(os.sched_getaffinity(0))
        self._possible = ours > 1
        self._gives_way = ours < processors
        self._expecting = False
        self._in_vain = self._left_out = 0
        self._rests_until = 0.0

    def expect(self) -> bool:
        """What was just sent may be answered at once; whether the next ``look`` will look for it."""
        if self._left_out:
            self._left_out -= 1
        else:
            self._expecting = self._possible and time.perf_counter() >= self._rests_until
        return self._expecting

    def look(self, there: Callable[[], object]) -> bool:
        """Whether ``there`` has said yes within a moment. A moment in vain is the last one until ``expect``."""
        if not self._expecting:
            return False
        until = time.perf_counter() + self._seconds
        while not there():
            if self._gives_way:
                os.sched_yield()
            now = time.perf_counter()
            if now >= until:
                if now - until > self._seconds:
                    self._rests_until = now + _RESTS * (now - until)
                self._expecting = False
                self._left_out, self._in_vain = self._in_vain, min(2 * self._in_vain + 1, _MOST_LEFT_OUT)
                return False
        self._in_vain = 0
        return True
