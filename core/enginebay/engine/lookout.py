"""What the core sees of its workers while it waits for them: who is busy, who is stopped, and who is hung."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from enginebay.engine.watch import WorkerWatch
from enginebay.errors import WorkerHung, in_words, is_interrupt
from enginebay.interfaces import Executor, RankHealth
from enginebay.messages import Replies
from enginebay.runtime import Runtime

__all__ = ["Look", "Lookout", "Verdict", "announced", "busy", "describe", "judge"]

_log = logging.getLogger(__name__)

_BETWEEN_LOOKS: Final = 1.0
_STOOD_STILL: Final = 1.0
"""A wait that ends so many seconds late was not late by load."""
_MOST_ANNOUNCED: Final = 3600.0
"""Seconds that a worker may ask for with one heartbeat."""
_BEATS: Final = 3
_STACK_SECONDS: Final = 2.0
_IDLE: Final = "idle"


class Verdict(Enum):
    """What one rank's signs of life say."""

    FINE = "fine"
    """It works, waits, or its end is told by other means: the wait goes on."""
    SUSPECT = "suspect"
    """It looks hung, and is looked at once more."""
    HUNG = "hung"
    """It looked hung twice."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was seen at one moment of a wait: ``waited`` seconds of it were the workers', our own lateness taken off."""

    waited: float
    ranks: tuple[RankHealth, ...]

    def of(self, rank: int) -> RankHealth | None:
        """One rank's part of it."""
        return next((one for one in self.ranks if one.rank == rank), None)


def judge(rank: RankHealth, waited: float, before: RankHealth | None, *, limit: float) -> Verdict:
    """The verdict on a rank that was seen now and at the look before; ``limit``: seconds without a sign of life.

    Only a process that is *stopped* is hung before its step's deadline: it was seen so twice, and has said nothing for
    ``limit`` seconds in which an answer was waited for. One that is busy, however long, is given its step's time; a
    starved one looks busy. One that has ended is reported by the executor.
    """
    if rank.state != "stopped" or min(rank.age, waited) < limit:
        return Verdict.FINE
    return Verdict.HUNG if before is not None and before.state == "stopped" else Verdict.SUSPECT


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


class Lookout:
    """Waits for answers, and looks at the workers' heartbeats meanwhile: first after one heartbeat, then every second.

    A wait that is answered within a heartbeat costs nothing. Used by the core's thread alone.
    """

    def __init__(self, watch: WorkerWatch, executor: Executor[Any], runtime: Runtime, *, heartbeat: float) -> None:
        self._watch = watch
        self._executor = executor
        self._runtime = runtime
        self._heartbeat = heartbeat

    def wait(self, future: Future[Replies], deadline: float) -> Replies:
        """The future's result.

        Raises ``WorkerLost`` as soon as a death is reported, ``WorkerHung`` once a rank is judged so, ``TimeoutError``
        at the deadline. The deadline moves when this process stood still (SIGSTOP, a machine asleep): an answer may
        have come meanwhile that nobody could read; and to the end of what a worker has announced (X6).
        """
        if future.done():
            return self._watch.wait(self._runtime, future, deadline)
        now = self._runtime.clock.now
        begun, late, before = now(), 0.0, Look(waited=0.0, ranks=())
        until, looks = begun + self._heartbeat, True
        while True:
            until = min(until, deadline) if looks else deadline
            try:
                return self._watch.wait(self._runtime, future, until)
            except TimeoutError:
                at = now()
                if future.done():  # a moment too late for that wait; or the answer itself is that error
                    return self._watch.wait(self._runtime, future, deadline)
                behind = max(0.0, at - until)
                if until >= deadline and behind < _STOOD_STILL:
                    left = announced(self._executor.health().ranks) if looks else 0.0
                    if left <= 0.0:
                        raise
                    deadline = at + left
            late += behind
            if behind >= _STOOD_STILL:
                deadline = max(deadline + behind, at + _BETWEEN_LOOKS)
            look = Look(waited=at - begun - late, ranks=self._executor.health().ranks)
            looks = bool(look.ranks)  # else this executor does not say
            for rank in look.ranks:
                if judge(rank, look.waited, before.of(rank.rank), limit=_BEATS * self._heartbeat) is Verdict.HUNG:
                    self.show_stacks()
                    raise WorkerHung(f"{describe(rank)}: no sign of life for {_BEATS} x [deadlines] heartbeat")
            before, until = look, at + _BETWEEN_LOOKS

    def who(self) -> str:
        """Words for who is busy with what, and what else the executor knows; "" when it knows nothing."""
        health = self._executor.health()
        words = [describe(rank) for rank in busy(health.ranks)]
        return "; ".join([*words, health.detail] if health.detail else words)

    def show_stacks(self) -> None:
        """Log where the workers that answer stand."""
        try:
            stacks = self._executor.stacks(self._runtime.clock.now() + _STACK_SECONDS)
        except BaseException as error:  # a report must not take the place of what it is about
            if is_interrupt(error):
                raise
            _log.warning("the workers' stacks cannot be had: %s", in_words(error))
            return
        for rank, stack in sorted(stacks.items()):
            _log.error("rank %d stands here:\n%s", rank, stack)
