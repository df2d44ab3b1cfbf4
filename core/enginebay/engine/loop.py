"""The engine's own thread: takes commands, steps the core, hands outputs to whoever waits. Never spins when idle.

Clients of every kind talk to the core through this loop, so an interrupt or a cancelled task of a client never meets
the core in the middle of a step.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from enginebay.engine.commands import Abort, Add, AddMany, Enter, ReadStats, Sink, Stop
from enginebay.engine.core import EngineCore
from enginebay.engine.death import Death
from enginebay.engine.desk import Desk, Do
from enginebay.errors import EnginebayError, InvalidRequest, RequestError, in_words
from enginebay.messages import ControlDone, RequestOutput, StopEngine
from enginebay.runtime import ChannelClosed, Thread

__all__ = ["Abort", "Add", "AddMany", "Do", "EngineLoop", "Enter", "ReadStats", "Sink", "Stop"]

_log = logging.getLogger(__name__)

_IDLE_SECONDS: Final = 5.0
"""The longest that an idle loop waits before it looks around; a command wakes it at once."""

_HELD_SECONDS: Final = 0.02
"""How long the loop waits when a scheduler holds every request back."""


Command = Add | AddMany | Abort | Enter | ReadStats | Do | Stop


@dataclass(kw_only=True, slots=True)
class _Reader:
    """Who waits for a request, and how many of its choices have not ended."""

    sink: Sink
    unfinished: int


class EngineLoop:
    """Drives one core in one thread, from ``start`` until ``Stop`` was sent."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._clock = core.runtime.clock
        self._inbox: deque[Command] = deque()
        self._bell, self._ear = core.runtime.transport.pair("engine loop")
        self._readers: dict[str, _Reader] = {}
        self._desk = Desk(core)
        self.stray: Callable[[Sink], None] = lambda sink: None
        self._stopping = False
        self._thread: Thread | None = None
        core.wake(self._ring, self._serve)

    def start(self, body: Callable[[], None] | None = None) -> None:
        """Start the thread; its ``body``, if it is not ``run`` itself, calls ``run``."""
        with suppress(EnginebayError):  # it has died of it: whoever asks for something is told
            self._core.stats()  # what ``status`` tells before the first step
        self._thread = self._core.runtime.spawner.thread("enginebay-engine", body or self.run)

    def send(self, command: Command) -> None:
        """Give the loop a command, from any thread. Raises the engine's end when the loop has ended."""
        self._inbox.append(command)
        try:
            self._bell.send(b"")
        except ChannelClosed:
            raise (self._core.death() or Death.closed().error()) from None

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end for so many seconds; whether it has ended."""
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.is_alive()

    def abandon(self) -> None:
        """The thread does not come back: tell each request its end in its stead."""
        self._fail_all(self._end)

    def run(self) -> None:
        """The thread's body."""
        try:
            while not self._stopping:
                self.turn()
        except BaseException as error:
            _log.exception("the engine loop failed")
            end = Death.of(RuntimeError(f"its loop failed: {in_words(error)}"))
            self._fail_all(lambda: self._core.death() or end.error())
        finally:
            try:
                self._core.stop()
            finally:
                self._bell.close()
                self._drain()
                self._fail_all(self._end)

    def turn(self) -> None:
        """Take the commands that are there, run one step, hand out what came of it; wait when there is nothing."""
        try:
            self._drain()
            if self._stopping:
                return
            self._desk.turn()
            if self._core.death() is not None:  # of a command, whose answer that was: nobody else has heard of it
                self._fail_all(self._end)
            if self._core.death() is not None or not self._core.has_work():
                self._core.stats()  # what ``status`` tells until the next step
                self._mend()
                if not self._core.has_work():  # what came while workers were started has rung already
                    self._wait(min(_IDLE_SECONDS, self._desk.patience))
                return
            outputs, scheduled = self._core.step(self._drain)
        except EnginebayError:
            self._fail_all(self._end)
            return
        self._hand_out(outputs)
        if not scheduled and not outputs:
            self._wait(_HELD_SECONDS)

    def _mend(self) -> None:
        """A worker that was lost while nothing was asked is not left for the next request to find.

        Unless the engine sleeps: new workers would take the memory that was given away.
        """
        if self._core.death() is None and not self._core.life.missing:
            self._core.mend()

    def _serve(self, until: float) -> None:
        """While the core waits for new workers: what needs none is done, until then or until something is asked."""
        self._wait(min(until - self._clock.now(), self._desk.patience))
        self._drain()
        self._desk.meanwhile()
        self.hand_out()
        if self._stopping:
            self._core.stop_by(self._clock.now() + self._core.parts.stop_timeout)

    def _ring(self) -> None:
        with suppress(ChannelClosed):  # the loop has ended
            self._bell.send(b"")

    def _wait(self, seconds: float) -> None:
        """Sleep until the bell rings, or for so long. What it rang for is found in the inbox."""
        if not self._inbox:
            self._hear(self._clock.now() + seconds)

    def _hear(self, deadline: float) -> bool:
        """Wait for a ring and take it; whether there was one."""
        try:
            if self._ear.receive(deadline) is None:
                self._stopping = True
                return False
        except TimeoutError:
            return False
        return True

    def _drain(self) -> None:
        """Handle every command that is there. The bell only wakes: a ring may come late, or, once, not at all."""
        if self._inbox:
            while self._hear(self._clock.now()):  # before the inbox is read: a later ring has a command of its own
                pass
        while self._inbox:
            self._handle(self._inbox.popleft())

    def _handle(self, command: Command) -> None:
        match command:
            case Add():
                self._add(command)
            case AddMany():
                for add in command.adds:
                    self._add(add)
            case Abort():
                reader = self._readers.get(command.request_id)
                if reader is not None and reader.sink is command.sink:
                    self._core.abort([command.request_id])
                else:
                    self.stray(command.sink)
            case Enter():
                if command.taken.set_running_or_notify_cancel():
                    self._enter(command)
            case ReadStats():
                self._answer_stats(command)
            case Do(command=StopEngine()):
                if command.answer.set_running_or_notify_cancel():
                    command.answer.set_result(ControlDone())
                self._stopping = True
            case Do():
                self._desk.put(command)
            case Stop():
                self._stopping = True

    def _add(self, command: Add) -> None:
        if command.ask.request_id in self._readers:  # it ended, or the core refuses: its end is its own reader's
            self.hand_out()
        try:
            self._core.add_request(command.ask, operation=command.operation, validated=True)
        except RequestError as error:
            command.sink.fail(error)
        except EnginebayError as error:
            command.sink.fail(error)
            self._fail_all(self._end)
        else:
            self._readers[command.ask.request_id] = _Reader(sink=command.sink, unfinished=command.ask.params.n)

    def _enter(self, command: Enter) -> None:
        moved, moving = command.moved, self._core.moving
        self.hand_out()
        why = moving.refusal(moved)
        if why is None:
            self._readers[moved.request_id] = _Reader(sink=command.sink, unfinished=len(moved.lives))
            try:
                moving.enter(moved, home=command.is_home)
            except RequestError as error:
                del self._readers[moved.request_id]
                why = error
            except EnginebayError:
                self._fail_all(self._end)
            else:
                if command.is_aborted():
                    self._core.abort([moved.request_id])
        if why is not None and not command.refused():
            moving.end(moved, str(why))
            self._readers[moved.request_id] = _Reader(sink=command.sink, unfinished=len(moved.lives))
            self.hand_out()

    def _answer_stats(self, command: ReadStats) -> None:
        try:
            command.answer.set_result(self._core.stats())
        except EnginebayError as error:
            command.answer.set_exception(error)
            self._fail_all(self._end)

    def forget(self, request_id: str) -> None:
        """Nothing more comes of this request here, in the loop's thread."""
        self._readers.pop(request_id, None)

    def hand_out(self) -> None:
        """Tell what came to exist, in the loop's thread."""
        self._hand_out(self._core.take_outputs())

    def _hand_out(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            self._deliver(output)

    def _deliver(self, output: RequestOutput) -> None:
        reader = self._readers.get(output.request_id)
        if reader is None:
            return
        if output.error_param is not None:  # refused after all: of each of its choices the same is told
            del self._readers[output.request_id]
            reader.sink.fail(InvalidRequest(output.error or "", param=output.error_param or None))
            return
        if output.finish_reason is not None:
            reader.unfinished -= 1
            if not reader.unfinished:
                del self._readers[output.request_id]
        reader.sink.put(output)

    def _end(self) -> EnginebayError:
        return self._core.death() or Death.closed().error()

    def _fail_all(self, error: Callable[[], EnginebayError]) -> None:
        """Tell each request once, with an exception of its own."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.sink.fail(error())
        self._desk.fail_all(error)
