"""The loop's half of control: commands wait here for the moment that is safe for them, and for their answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from enginebay.engine.control.controls import QUIET
from enginebay.engine.control.tensors import Command
from enginebay.engine.core import EngineCore
from enginebay.errors import EnginebayError
from enginebay.messages import ControlDone, Drain

__all__ = ["Desk", "Do"]

_UNTIL_IDLE: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Do:
    """Carry out a command when it is safe, and say what came of it."""

    command: Command
    answer: Future[ControlDone] = field(default_factory=Future)


@dataclass(frozen=True, kw_only=True)
class _Draining:
    answer: Future[ControlDone]
    deadline: float


class Desk:
    """Takes commands at any time, and carries them out in order, between steps, when ``turn`` is called."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._clock = core.runtime.clock
        self._waiting: deque[Do] = deque()
        self._draining: list[_Draining] = []

    def put(self, asked: Do) -> None:
        """Take a command, in the loop's thread. One whose asker has gone by now is passed over."""
        if asked.answer.set_running_or_notify_cancel():
            self._waiting.append(asked)

    def turn(self) -> None:
        """Do what can be done now, between two steps of the core; calls on workers queue behind steps in flight."""
        while self._waiting:
            if not self._is_time(self._waiting[0].command):
                break
            asked = self._waiting.popleft()
            if isinstance(asked.command, Drain):
                self._begin_drain(asked.command, asked.answer)
            else:
                self._carry_out(asked)
        self._look_at_drains()

    def meanwhile(self) -> None:
        """Do what needs no workers, while there are none. What comes behind a command that needs them waits with it."""
        while self._waiting and isinstance(command := self._waiting[0].command, Drain):
            self._begin_drain(command, self._waiting.popleft().answer)
        self._look_at_drains()

    @property
    def patience(self) -> float:
        """Seconds until ``turn`` has to be called again, if nothing else happens."""
        now = self._clock.now()
        return max(0.0, min([_UNTIL_IDLE, *(one.deadline - now for one in self._draining)]))

    def fail_all(self, error: Callable[[], EnginebayError]) -> None:
        """Answer whatever waits with an error of its own."""
        for asked in self._waiting:
            asked.answer.set_exception(error())
        for one in self._draining:
            one.answer.set_exception(error())
        self._waiting.clear()
        self._draining.clear()

    def _is_time(self, command: Command) -> bool:
        """What needs the workers quiet waits for the runner to be told of the last request's end; with requests that
        run it does not wait: it is refused."""
        return not isinstance(command, QUIET) or self._core.num_unfinished > 0 or not self._core.has_work()

    def _carry_out(self, asked: Do) -> None:
        try:
            done = self._core.control(asked.command)
        except Exception as error:  # whatever it is, it is the answer
            asked.answer.set_exception(error)
        else:
            asked.answer.set_result(done)

    def _begin_drain(self, command: Drain, answer: Future[ControlDone]) -> None:
        self._core.drain(True)
        timeout = command.timeout if command.timeout is not None else self._core.parts.drain_timeout
        self._draining.append(_Draining(answer=answer, deadline=self._clock.now() + timeout))

    def _look_at_drains(self) -> None:
        unfinished, now = self._core.num_unfinished, self._clock.now()
        for one in list(self._draining):
            if not unfinished or now >= one.deadline:
                self._draining.remove(one)
                one.answer.set_result(ControlDone(facts={"unfinished": str(unfinished)}))
