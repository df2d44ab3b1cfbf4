"""What the core sees of its workers while it waits for them: who is busy, who is stopped, and who is hung."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from enginebay.engine.verdicts import Look, Pace, Verdict, announced, busy, describe, judge, lacked
from enginebay.engine.watch import WorkerWatch
from enginebay.errors import WorkerHung, in_words, is_interrupt
from enginebay.interfaces import Executor
from enginebay.messages import Replies, SchedulerOutput
from enginebay.runtime import Runtime

__all__ = ["Late", "Lookout"]

_log = logging.getLogger(__name__)

_BETWEEN_LOOKS: Final = 1.0
_STOOD_STILL: Final = 1.0
"""A wait that ends so many seconds late was not late by load."""
_BEATS: Final = 3
_STACK_SECONDS: Final = 2.0
_LEAST: Final = 0.05
"""A deadline is not moved by fewer seconds."""


Late = Callable[[Mapping[int, tuple[Verdict, str]]], None]
"""Told of the ranks that are late: how, and in words."""


class Lookout:
    """Waits for answers, and looks at the workers' heartbeats meanwhile: first after one heartbeat, then every second.

    A wait that is answered within a heartbeat costs nothing. Used by the core's thread alone.
    """

    def __init__(
        self,
        watch: WorkerWatch,
        executor: Executor[Any],
        runtime: Runtime,
        *,
        heartbeat: float,
        pace: Pace | None = None,
        late: Late = lambda ranks: None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """``pace``: after which time a step is late. ``late``: told of the ranks that are, at each look; of none, when
        the answer has come after all. ``meanwhile`` is called after each look, the first of which is then no later than
        the others."""
        self._watch = watch
        self._executor = executor
        self._runtime = runtime
        self._heartbeat = heartbeat
        self._pace = pace
        self._late = late
        self._meanwhile = meanwhile

    def wait(self, future: Future[Replies], deadline: float, step: SchedulerOutput | None = None) -> Replies:
        """The future's result; ``step`` is what it is the answer to, None: to another call.

        Raises ``WorkerLost`` as soon as a death is reported, ``WorkerHung`` once a rank is judged so, ``TimeoutError``
        at the deadline. The deadline moves when this process stood still (SIGSTOP, a machine asleep): an answer may
        have come meanwhile that nobody could read; by the time that a worker had no processor, as far as it was looked
        at; and to the end of what a worker has announced (X6).
        """
        if future.done():
            return self._watch.wait(self._runtime, future, deadline)
        now = self._runtime.clock.now
        begun, late, asked_again = now(), 0.0, False
        allowed = deadline - begun
        first_look = self._heartbeat if self._meanwhile is None else min(self._heartbeat, _BETWEEN_LOOKS)
        until, looks = begun + min(first_look, (deadline - begun) / 2), True
        first = before = Look(waited=0.0, ranks=())
        told = False
        while True:
            until = min(until, deadline) if looks else deadline
            try:
                replies = self._watch.wait(self._runtime, future, until)
            except TimeoutError as error:
                at = now()
                if future.done():  # a moment too late for that wait; or the answer itself is that error
                    return self._watch.wait(self._runtime, future, deadline)
                over = error
            else:
                if told:
                    self._late({})
                return replies
            behind = max(0.0, at - until)
            late += behind
            look = Look(waited=at - begun - late, ranks=self._executor.health().ranks if looks else ())
            looks = bool(look.ranks)  # else this executor does not say
            first = first if first.ranks else look
            if behind >= _STOOD_STILL:
                deadline = max(deadline + behind, at + _BETWEEN_LOOKS)
            elif until >= deadline:
                queued = lacked(look, first)
                left = max(announced(look.ranks), allowed - (look.waited - queued))
                if left >= _LEAST:
                    asked_again = False
                elif asked_again or not (queued >= _LEAST or (look.ranks and not busy(look.ranks))):
                    raise over
                else:  # a wait that is not over is not counted yet, or the answer is on its way: look once more
                    left, asked_again = _BETWEEN_LOOKS, True
                deadline = at + left
            told = self._look(look, before, first, step) or told
            before, until = look, at + _BETWEEN_LOOKS
            if self._meanwhile is not None:
                self._meanwhile()

    def _look(self, look: Look, before: Look, first: Look, step: SchedulerOutput | None) -> bool:
        """Judge each rank; whether any is late, which is told. Raises ``WorkerHung``."""
        expected = math.inf
        if self._pace is not None and step is not None:
            expected = self._pace.expected(step.total_num_scheduled_tokens)
        late = {}
        for rank in look.ranks:
            verdict = judge(rank.rank, look, before, first, limit=_BEATS * self._heartbeat, expected=expected)
            if verdict is Verdict.HUNG:
                self.show_stacks()
                raise WorkerHung(f"{describe(rank)}: no sign of life for {_BEATS} x [deadlines] heartbeat")
            if verdict.late:
                late[rank.rank] = verdict, f"{describe(rank)}: steps of this size are expected within {expected:.0f} s"
        if late:
            self._late(late)
        return bool(late)

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
