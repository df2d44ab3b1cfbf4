"""When each fault of one replica is due: a pure function of the options, the calls so far and the time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from enginebay.runtime import Entropy
from enginebay.testing.faults.options import IN_WORKER, ON_ANSWERS, Fault, FaultKind, FaultOptions, RandomFaults

__all__ = ["Agenda", "draw"]

_WITH_A_CALL: Final = ON_ANSWERS | IN_WORKER
"""Kinds that happen to a call: when their time has come, they wait for the next one."""


def draw(random: RandomFaults, replica: int, ranks: Sequence[int]) -> Iterator[Fault]:
    """The replica's faults in the order of their times, without end unless there is a limit; the same at each call."""
    stream = Entropy(random.seed).stream(f"faults {replica}")
    at, number = 0.0, 0
    while random.limit is None or number < random.limit:
        number += 1
        at += random.gap + stream.expovariate(random.rate)
        kind = stream.choice(random.kinds)
        rank, seconds, share = stream.choice(ranks), stream.uniform(*random.seconds), stream.random()
        if kind is FaultKind.STOP and share < random.never:
            seconds = 0.0
        when = {"after_seconds": round(at, 6)} if random.per == "second" else {"after_calls": math.ceil(at) or 1}
        yield Fault.model_construct(
            kind=kind, replica=replica, rank=rank, seconds=round(seconds, 6), bytes=random.bytes, **when
        )


class Agenda:
    """Hands out each fault of one replica once, when it is due. Not thread-safe.

    ``now`` is seconds since the replica's first counted call. Calls are counted by ``at_call``, from 1.
    """

    def __init__(self, options: FaultOptions, replica: int, ranks: Sequence[int]) -> None:
        self._to_come = [one for one in options.script if one.replica == replica]
        self._drawn = draw(options.random, replica, ranks) if options.random is not None else iter(())
        self._ahead = next(self._drawn, None)
        self._due: list[Fault] = []
        self.num_calls = 0

    def at_call(self, ranks: Sequence[int], now: float) -> list[Fault]:
        """Count a call to these ranks, and take what is due with it. A call's fault waits for one to its own rank."""
        self.num_calls += 1
        self._collect(now)
        return self._take(lambda one: one.kind not in _WITH_A_CALL or one.rank in ranks)

    def at_time(self, now: float) -> list[Fault]:
        """Take what is due by now and needs no call."""
        self._collect(now)
        return self._take(lambda one: one.kind not in _WITH_A_CALL)

    def next_time(self) -> float | None:
        """When ``at_time`` is to be asked, at the latest; None: nothing comes by time."""
        ahead = [self._ahead] if self._ahead is not None else []
        times = [one.after_seconds for one in (*self._to_come, *ahead) if one.after_seconds is not None]
        return min(times, default=None)

    def _collect(self, now: float) -> None:
        self._due += [one for one in self._to_come if self._has_come(one, now)]
        self._to_come = [one for one in self._to_come if not self._has_come(one, now)]
        while self._ahead is not None and self._has_come(self._ahead, now):
            self._due.append(self._ahead)
            self._ahead = next(self._drawn, None)

    def _has_come(self, one: Fault, now: float) -> bool:
        if one.after_calls is not None:
            return one.after_calls <= self.num_calls
        return one.after_seconds is not None and one.after_seconds <= now

    def _take(self, wanted: Callable[[Fault], bool]) -> list[Fault]:
        taken = [one for one in self._due if wanted(one)]
        self._due = [one for one in self._due if not wanted(one)]
        return taken
