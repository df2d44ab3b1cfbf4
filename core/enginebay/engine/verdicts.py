"""What workers' signs of life say while an answer is late: pure functions from evidence to verdict.

Nobody is hung for being slow. Time that a worker was ready to run and had no processor is not its own, and is taken off
wherever it is measured; what it asks for itself (a compile, a first run) is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from enginebay.interfaces import RankHealth

__all__ = ["NOTABLE", "Look", "Pace", "Verdict", "announced", "busy", "describe", "judge", "lacked"]

_IDLE: Final = "idle"
_MOST_ANNOUNCED: Final = 3600.0
"""Seconds that a worker may ask for with one heartbeat."""
_STARVED: Final = 0.5
"""The share of the time without a processor from which on that is the cause."""
NOTABLE: Final = 0.5
"""Seconds of a step beyond which it says something of those that come."""
_TIMES: Final = 10.0
_STILL: Final = 0.01
"""The share of the time on a processor below which a worker does nothing but wait."""


class Verdict(Enum):
    """What one rank's signs of life say."""

    FINE = "fine"
    """It works, waits for a call, or its end is told by other means."""
    SLOW = "slow"
    """It computes, for longer than steps of this size ever took."""
    STARVED = "starved"
    """It would compute, and others have the processors."""
    BLOCKED = "blocked"
    """It waits for something that is no call: a device, a peer, a lock."""
    SUSPECT = "suspect"
    """It looks hung, and is looked at once more."""
    HUNG = "hung"
    """It looked hung twice."""

    @property
    def late(self) -> bool:
        """Whether nothing is wrong with it but that it takes too long."""
        return self in (Verdict.SLOW, Verdict.STARVED, Verdict.BLOCKED)


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was seen at one moment of a wait: ``waited`` seconds of it were the workers', our own lateness taken off."""

    waited: float
    ranks: tuple[RankHealth, ...]

    def of(self, rank: int) -> RankHealth | None:
        """One rank's part of it."""
        return next((one for one in self.ranks if one.rank == rank), None)


def judge(rank: int, now: Look, before: Look, first: Look, *, limit: float, expected: float = math.inf) -> Verdict:
    """The verdict on a rank, by what was seen now, at the look before and at the first of this wait.

    Only a process that is *stopped* is hung before its step's deadline: it was seen so twice, and has said nothing for
    ``limit`` seconds in which an answer was waited for. One that is busy, however long, is given its step's time; it
    is late after ``expected`` seconds, unless it has asked for more. One that has ended is reported by the executor.
    """
    seen, was = now.of(rank), before.of(rank)
    if seen is None or seen.state == "gone":
        return Verdict.FINE
    if seen.state == "stopped":
        if min(seen.age, now.waited) < limit:
            return Verdict.FINE
        return Verdict.HUNG if was is not None and was.state == "stopped" else Verdict.SUSPECT
    if seen.phase == _IDLE or now.waited <= expected or announced([seen]) > 0.0:
        return Verdict.FINE
    span, since = now.waited - first.waited, first.of(rank)
    if since is None or span <= 0.0:
        return Verdict.SLOW
    if _grown(since.queued, seen.queued) >= _STARVED * span:
        return Verdict.STARVED
    return Verdict.BLOCKED if 0.0 <= since.ran <= seen.ran < since.ran + _STILL * span else Verdict.SLOW


def lacked(now: Look, first: Look) -> float:
    """Seconds since the first look that the rank which was worst off was ready to run and had no processor."""
    pairs = ((first.of(one.rank), one) for one in now.ranks if one.phase != _IDLE)
    return max((_grown(since.queued, one.queued) for since, one in pairs if since is not None), default=0.0)


def announced(ranks: Iterable[RankHealth]) -> float:
    """Seconds that are left of what the workers have asked for; none, or less: nothing is announced."""
    return max((min(rank.budget, _MOST_ANNOUNCED) - rank.age for rank in ranks if rank.budget), default=0.0)


def describe(rank: RankHealth) -> str:
    """``rank 1 has been in execute_model of step 41 for 17 s (its process is stopped)``."""
    where = rank.phase or "its start"
    step = f" of step {rank.step}" if rank.step >= 0 else ""
    how = f" (its process is {rank.state})" if rank.state not in ("", "running") else ""
    return f"rank {rank.rank} has been in {where}{step} for {rank.age:.0f} s{how}"


def busy(ranks: Iterable[RankHealth]) -> list[RankHealth]:
    """Those that are not waiting for a call."""
    return [rank for rank in ranks if rank.phase != _IDLE]


def _grown(since: float, now: float) -> float:
    """0 where the executor does not say."""
    return max(0.0, now - since) if since >= 0.0 else 0.0


@dataclass(slots=True)
class Pace:
    """How long steps took so far, by their number of tokens; sizes within a power of two are one.

    Kept are those that took longer than ``NOTABLE`` seconds: of shorter ones ``expected`` says the same.
    """

    _longest: dict[int, float] = field(default_factory=dict)

    def took(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens has ended."""
        if seconds > NOTABLE:
            size = tokens.bit_length()
            self._longest[size] = max(seconds, self._longest.get(size, 0.0))

    def expected(self, tokens: int) -> float:
        """Seconds after which a step of so many tokens is late: ten times the longest one, and five at least."""
        return max(_TIMES * NOTABLE, _TIMES * self._longest.get(tokens.bit_length(), 0.0))
