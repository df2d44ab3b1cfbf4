"""Whether the steps get anywhere: an engine that only turns must end, with the name of the part that is at fault.

Progress is a token that was committed, a request that ended, or a prompt that was computed further than ever before.
Nothing else counts, least of all that a step was sent.
"""

from __future__ import annotations

from typing import Final

from enginebay.engine.parts import CoreParts
from enginebay.engine.requests import Requests
from enginebay.engine.steps import InFlight
from enginebay.errors import EngineDead, PolicyFailed

__all__ = ["MAX_WASTED_STEPS", "Progress"]

MAX_WASTED_STEPS: Final = 1000
"""So many steps that had to bring something and brought nothing may follow each other, whatever time they take."""

_FEW: Final = 10
"""Fewer wasted steps than these are never too many, however long they took."""


class Progress:
    """Looks at each turn of the core, and raises once too many in a row were for nothing.

    Too many are: nothing scheduled for ``step_timeout`` while requests wait; ``MAX_WASTED_STEPS`` steps whose answer
    was dropped (the executor's fault), that drew no token though they had to (the runner's) or that ran nothing (the
    scheduler's), or fewer within ``step_timeout``; and steps that only compute again what was computed, more than the
    longest request takes with one token a step.
    """

    def __init__(self, requests: Requests, parts: CoreParts) -> None:
        self._requests = requests
        self._parts = parts
        self._clock = parts.runtime.clock
        self._silent: dict[str, int] = {}
        self._restart(requests.progress, self._clock.now())

    def look(self, flight: InFlight | None) -> None:
        """Judge a turn after its commit; ``flight`` None: nothing ran.

        Raises ``EngineDead`` naming the executor or the runner, ``PolicyFailed`` naming the scheduler.
        """
        silent = [] if flight is None else flight.silent
        if flight is not None and (silent or self._silent):
            self._look_for_told_tokens(flight)
            self._count_silent(silent)
        if self._moved():
            return
        if flight is None:
            self._check_held(self._clock.now())
            return
        if silent:
            self._undrawn += 1
        elif not flight.rows:
            self._empty += 1
        self._judge()

    def dropped(self) -> None:
        """Judge a turn whose answer was not taken, as ``look`` does."""
        self._silent = {}
        if not self._moved():
            self._dropped += 1
            self._judge()

    def resume(self) -> None:
        """New workers stand: the time that it took them is nobody's lack of progress."""
        self._since = self._clock.now()

    def _moved(self) -> bool:
        """Whether there was progress since the last look."""
        if (mark := self._requests.progress) == self._mark:
            return False
        self._restart(mark, self._clock.now())
        return True

    def _judge(self) -> None:
        self._steps += 1
        now = self._clock.now()
        wasted = self._dropped + self._undrawn + self._empty
        late = now - self._waiting_since() > self._parts.step_timeout
        if (
            wasted >= MAX_WASTED_STEPS
            or (late and wasted >= _FEW)
            or self._steps >= MAX_WASTED_STEPS + self._parts.max_model_len
        ):
            raise self._verdict()

    def _restart(self, mark: int, now: float) -> None:
        self._mark, self._since = mark, now
        self._steps = self._dropped = self._undrawn = self._empty = 0

    def _waiting_since(self) -> float:
        """The last progress, or the moment when there was something to do again: idle time is nobody's fault."""
        return max(self._since, self._requests.busy_since)

    def _check_held(self, now: float) -> None:
        held = now - self._waiting_since()
        if len(self._requests) and held > self._parts.step_timeout:
            raise PolicyFailed(
                f"{self._parts.scheduler_name} has scheduled nothing for {held:.0f} s, "
                f"although {len(self._requests)} requests wait"
            )

    def _look_for_told_tokens(self, flight: InFlight) -> None:
        """A runner that is told tokens which it has lacks those that come to stand behind them."""
        for running in flight.sent.running:
            if running.new_token_ids and running.request_id in flight.silent:
                raise PolicyFailed(
                    f"{self._parts.scheduler_name} told the runner {len(running.new_token_ids)} tokens of request "
                    f"{running.request_id!r} in step {flight.step}, and after them it drew none: new_token_ids are "
                    "committed tokens that the runner has not drawn itself"
                )

    def _count_silent(self, silent: list[str]) -> None:
        """One request can be starved while the others go on."""
        self._silent = {request_id: self._silent.get(request_id, 0) + 1 for request_id in silent}
        for request_id, count in self._silent.items():
            if count >= MAX_WASTED_STEPS:
                raise EngineDead(
                    f"the engine stopped: {self._parts.runner_name} drew no token for request {request_id!r} "
                    f"in {count} steps in a row, each of which had to draw one"
                )

    def _verdict(self) -> EngineDead:
        what = f"{self._steps} steps in a row brought no token, ended no request and computed nothing new"
        if self._dropped and self._dropped >= max(self._undrawn, self._empty):
            return EngineDead(
                f"the engine stopped: {what}: {self._parts.executor_name} answered {self._dropped} of them "
                "for another call, step or generation"
            )
        if self._undrawn and self._undrawn >= self._empty:
            return EngineDead(
                f"the engine stopped: {what}: {self._parts.runner_name} drew no token in {self._undrawn} of them, "
                "although it had to"
            )
        return PolicyFailed(
            f"{what}: {self._parts.scheduler_name} keeps scheduling them, although {len(self._requests)} requests wait"
        )
