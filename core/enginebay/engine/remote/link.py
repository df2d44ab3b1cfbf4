"""The thread that has a front end's socket: says hello, sends, receives, comes back after a break, sees the end."""

from __future__ import annotations

import logging
import os
from collections import deque
from concurrent.futures import Future
from typing import Final

import msgspec

from enginebay.engine.remote.requests import RemoteRequests
from enginebay.engine.service.words import error_of
from enginebay.errors import ConfigError, EnginebayError, EngineDead, InvalidRequest
from enginebay.messages import (
    Answer,
    Delta,
    Ended,
    Failed,
    FromFront,
    Goodbye,
    Hello,
    Refusal,
    Stats,
    ToFront,
    Welcome,
)
from enginebay.runfolder import folders_of, sweep
from enginebay.runtime import Clock, Spawner, Thread
from enginebay.transport.front_address import FrontAddress
from enginebay.transport.front_door import MAX_FRONT_BYTES
from enginebay.transport.front_keys import ClientKeys
from enginebay.transport.front_wire import Connected, FrontWire, Line, Lost, Received, check_listening

__all__ = ["RemoteLink"]

_log = logging.getLogger(__name__)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[ToFront]] = msgspec.msgpack.Decoder(ToFront)

_TICK_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.2
_RESUME_SECONDS: Final = 10.0
_SILENCE_SECONDS: Final = 60.0
"""An engine says that it is there every second, also while a step runs."""

_STUCK_SECONDS: Final = 0.02
_LINGER_SECONDS: Final = 0.5
_JOIN_SECONDS: Final = 5.0
_TIDY_SECONDS: Final = 3.0


class RemoteLink:
    """One session with one engine. ``welcomed`` has the engine's greeting, or why there is none."""

    def __init__(self, address: FrontAddress, keys: ClientKeys | None, requests: RemoteRequests, clock: Clock) -> None:
        """Raises ``ConfigError`` for missing keys, ``EngineDead`` when plainly nobody listens."""
        check_listening(address)
        self._address = address
        self._requests = requests
        self._clock = clock
        self._wire = FrontWire(address, keys)
        self.welcomed: Future[Welcome] = Future()
        self._welcome: Welcome | None = None
        self._is_up = False
        self._control_up = False
        self._control_begun = False
        self._lost_at: float | None = None
        self._retry_at: float | None = None
        self._heard_at = clock.now()
        self._next_tick = 0.0
        self._is_stuck = False
        self._leaving = False
        self._is_orphaned = False
        self._thread: Thread | None = None

    def start(self, spawner: Spawner) -> None:
        """Connect, in a thread of its own."""
        self._thread = spawner.thread("enginebay-remote", self._run)

    def wake(self) -> None:
        """There is something to be sent."""
        self._wire.wake()

    def leave(self) -> None:
        """Say goodbye and end, without waiting for it."""
        self._leaving = True
        self._wire.wake()

    def close(self) -> None:
        """The same, and wait for it, unless it is the thread itself that asks."""
        self.leave()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            self._wire.connect(Line.DATA, self._address)
            while not self._leaving and self._requests.end() is None:
                self._turn()
        except Exception as error:
            _log.exception("the connection to the engine failed")
            self._die(EngineDead(f"the connection to the engine failed: {type(error).__name__}: {error}"))
        finally:
            self._die(EngineDead("the connection to the engine is closed; make a new one"))
            if self._is_up:
                self._wire.send(Line.DATA, _ENCODER.encode(Goodbye()))
            self._wire.close(_LINGER_SECONDS)
            if self._is_orphaned:
                self._tidy()

    def _turn(self) -> None:
        begun = self._clock.now()
        until = self._next_tick if self._retry_at is None else min(self._retry_at, self._next_tick)
        happened = self._wire.receive(_STUCK_SECONDS if self._is_stuck else max(0.0, until - begun))
        now = self._clock.now()
        for event in happened:
            match event:
                case Received():
                    self._heard_at = now
                    self._hear(event.body)
                case Connected():
                    self._connected(event.line)
                case Lost():
                    self._lost(event, now)
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._wire.connect(Line.DATA, self._address)
        if now >= self._next_tick:
            self._tick(now)
        self._send()

    def _tick(self, now: float) -> None:
        """Acknowledge, and see whether the engine still says that it is there to those who wait for it."""
        late = now - self._next_tick if self._next_tick else 0.0
        self._next_tick = now + _TICK_SECONDS
        self._requests.acknowledge_all()
        self._requests.fail_overdue(now, self._who)
        if not self._requests.is_waited_for or late > _TICK_SECONDS:  # it was us who were stopped
            self._heard_at = now
        elif self._welcome is not None and self._lost_at is None and now - self._heard_at > _SILENCE_SECONDS:
            self._die(
                EngineDead(f"the engine ({self._who}) has said nothing for {_SILENCE_SECONDS:g} s: is it stopped?")
            )

    def _hear(self, body: bytes) -> None:
        message = _DECODER.decode(body)
        match message:
            case Welcome():
                self._greeted(message)
            case Delta() | Failed():
                self._requests.take(message, len(body))
            case Answer() | Stats() | Refusal():
                self._requests.answer(message)
            case Ended():
                self._die(error_of(message.kind, message.message))

    def _greeted(self, welcome: Welcome) -> None:
        is_first, self._welcome = self._welcome is None, welcome
        self._is_up, self._lost_at = True, None
        if is_first:
            self.welcomed.set_result(welcome)
        else:
            self._requests.resumed(welcome.known)

    def _connected(self, line: Line) -> None:
        if line is Line.CONTROL:
            self._control_up = True
            return
        hello = Hello()
        if self._welcome is not None:
            hello = Hello(session=self._welcome.session, arrived=self._requests.arrived())
        self._wire.send(line, _ENCODER.encode(hello))

    def _lost(self, lost: Lost, now: float) -> None:
        if lost.line is Line.CONTROL:
            self._control_up = self._control_begun = False
            error = EngineDead(f"the connection for control to the engine ({self._who}) was lost: {lost.why}")
            self._requests.fail_questions(error, is_control=True)
            return
        self._is_up = False
        self._requests.fail_questions(EngineDead(f"the engine ({self._who}): {lost.why}"), is_control=False)
        if lost.refused:
            self._die(ConfigError(f"the engine at {self._address}: {lost.why}; is the key file the right one?"))
        elif self._welcome is None:
            self._die(EngineDead(f"no engine at {self._address}: {lost.why}"))
        elif self._address.is_local:
            self._is_orphaned = True
            self._die(EngineDead(self._obituary()))
        else:
            self._lost_at = now if self._lost_at is None else self._lost_at
            if now - self._lost_at > _RESUME_SECONDS:
                self._die(EngineDead(f"the engine ({self._who}) cannot be reached: {lost.why}"))
            else:
                self._retry_at = now + _RETRY_SECONDS

    def _send(self) -> None:
        self._is_stuck = False
        if self._is_up:
            self._send_by(Line.DATA, self._requests.data)
        if self._requests.control and self._welcome is not None and not self._control_begun:
            self._control_begun = True
            self._wire.connect(Line.CONTROL, self._address.control(self._welcome.control_port))
        if self._control_up:
            self._send_by(Line.CONTROL, self._requests.control)

    def _send_by(self, line: Line, mail: deque[FromFront]) -> None:
        while mail:
            try:
                message = mail.popleft()
            except IndexError:  # emptied by another thread: it is over
                return
            try:
                body = _encoded(message)
            except EnginebayError as error:
                self._requests.refuse(message, error)
                continue
            if not self._wire.send(line, body):
                mail.appendleft(message)
                self._is_stuck = True
                return

    def _die(self, error: EnginebayError) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(error)
        self._requests.die(error)

    def _tidy(self) -> None:
        """Remove what a killed engine left, since it cannot; its locks come free a moment after its sockets closed."""
        assert self._address.path is not None, "over TCP it is another machine's"
        assert self._welcome is not None, "it hung up later"
        root, until = self._address.path.parent.parent, self._clock.now() + _TIDY_SECONDS
        while folders_of(self._welcome.pid, root) and self._clock.now() < until:
            sweep(root)
            try:
                self._clock.wait_future(self._clock.event(), self._clock.now() + _STUCK_SECONDS)
            except TimeoutError:
                continue

    @property
    def _who(self) -> str:
        return f"pid {self._welcome.pid}" if self._welcome is not None else str(self._address)

    def _obituary(self) -> str:
        """What is to be seen of an engine on this machine that hung up without a word."""
        assert self._welcome is not None, "it hung up later"
        try:
            os.kill(self._welcome.pid, 0)
        except ProcessLookupError:
            return f"the engine (pid {self._welcome.pid}) is gone: it was killed, or ended without a word"
        except PermissionError:
            pass  # another's by now, or there: it is not ours to tell
        return f"the engine (pid {self._welcome.pid}) is gone: it has closed the connection"


def _encoded(message: FromFront) -> bytes:
    """The message as it is sent. Raises ``InvalidRequest`` for what no message can hold, or the engine would not take.

    The engine hangs up on a longer one, and everything else of this session would end with it.
    """
    try:
        body = _ENCODER.encode(message)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"that cannot be sent to the engine: {type(error).__name__}: {error}") from None
    if len(body) > MAX_FRONT_BYTES:
        raise InvalidRequest(
            f"that is {len(body):,} bytes as a message to the engine, and it takes at most {MAX_FRONT_BYTES:,}: send "
            "less at once, or have the workers read it from a file"
        )
    return body
