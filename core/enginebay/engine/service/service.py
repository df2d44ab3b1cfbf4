"""The engine's side of its front ends in other processes: who they are, what they may ask, and when they are gone.

One thread of its own does all of the input and output. It hands requests to the engine's loop through an
``EnginePort``, and outputs come back through sinks, so no front end, slow, stopped or hostile, holds up a step.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from enginebay.engine.port import EnginePort
from enginebay.engine.service.control import ControlTalk
from enginebay.engine.service.sessions import Session
from enginebay.engine.service.streams import Stream
from enginebay.engine.service.welcome import Served, welcome
from enginebay.engine.service.words import told
from enginebay.errors import EnginebayError, EngineBusy, EngineDead
from enginebay.messages import (
    FRONT_PROTOCOL,
    AbortRequest,
    CheckRequest,
    Ended,
    FromFront,
    Goodbye,
    Hello,
    Ping,
    Pong,
    Submit,
    Taken,
    ToFront,
)
from enginebay.runtime import Runtime, Thread
from enginebay.transport.front_door import Arrival, FrontDoor, Peer

__all__ = ["EngineService", "Served"]

_log = logging.getLogger(__name__)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[FromFront]] = msgspec.msgpack.Decoder(FromFront)

_TICK_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.02
_PROBING_SECONDS: Final = 0.5
"""For so long after somebody has left it is asked again and again who it was: the socket knows it a little later."""

_MAX_SESSIONS: Final = 256
_LINGER_SECONDS: Final = 1.0


class EngineService:
    """Serves one engine at one door. ``start`` it when the engine runs; ``close`` it before, or after, it ends."""

    def __init__(
        self,
        port: EnginePort,
        door: FrontDoor,
        served: Served,
        runtime: Runtime,
        *,
        on_stop: Callable[[], None] = lambda: None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """``on_stop`` is called, in the service's thread, when a front end asks for the engine's end.

        ``tell`` takes the lines that say which changes were asked for and what came of them, in any thread.
        """
        self._port = port
        self._door = door
        self._served = served
        self._clock = runtime.clock
        self._spawner = runtime.spawner
        self._names = runtime.entropy.stream("sessions")
        self._control = ControlTalk(port, self._clock, say=self._say, later=self._say_later, on_stop=on_stop, tell=tell)
        self._sessions: dict[str, Session] = {}
        self._by_peer: dict[Peer, Session] = {}
        self._num_sessions = 0
        self._news: deque[tuple[Session, Stream]] = deque()
        self._answers: deque[tuple[Peer, ToFront]] = deque()
        self._probe_until = 0.0
        self._next_tick = 0.0
        self._end: EnginebayError | None = None
        self._thread: Thread | None = None
        self.num_damaged = 0
        """Messages that were none, or not for who sent them."""

    def start(self) -> None:
        """Start to answer."""
        self._thread = self._spawner.thread("enginebay-service", self._run)

    def close(self, end: EnginebayError | None = None, timeout: float = 5.0) -> None:
        """Tell every front end the engine's end, once, and close the door; waits ``timeout`` seconds. Idempotent."""
        if self._end is None:
            self._end = end or EngineDead("the engine was stopped")
        self._door.wake()
        if self._thread is None:
            self._door.close()
        else:
            self._thread.join(timeout)

    @property
    def num_front_ends(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    def _run(self) -> None:
        try:
            while self._end is None:
                self._turn()
            self._say_farewell(self._end)
        except Exception:
            _log.exception("the service for front ends failed")
        finally:
            for session in tuple(self._sessions.values()):
                session.end()
            self._door.close(_LINGER_SECONDS)

    def _turn(self) -> None:
        now = self._clock.now()
        blocked = any(session.is_blocked for session in self._sessions.values())
        soon = _RETRY_SECONDS if blocked or now < self._probe_until else max(0.0, self._next_tick - now)
        arrivals, somebody_left = self._door.receive(0.0 if self._news or self._answers else soon)
        now = self._clock.now()
        for arrival in arrivals:
            self._hear(arrival, now)
        self._flush()
        if somebody_left:
            self._probe_until = now + _PROBING_SECONDS
        if now >= self._next_tick or now < self._probe_until:
            self._tick(now)

    def _flush(self) -> None:
        """Send what has come of requests and of questions."""
        for _ in range(len(self._news)):
            session, stream = self._news.popleft()
            session.pump(stream)
        while self._answers:
            self._say(*self._answers.popleft())

    def _tick(self, now: float) -> None:
        """Look who is there, and who reads."""
        self._next_tick = now + _TICK_SECONDS
        for session in tuple(self._sessions.values()):
            if session.peer is not None:
                session.send(Pong())
            if session.is_blocked:
                session.pump_all()
            if session.peer is None:
                self._look_after_lost(session, now)
            elif not session.waits_for_reader:
                session.heard_at = now
            elif now - session.heard_at > self._served.stall:
                why = f"the front end has taken nothing of what was sent for {self._served.stall:g} s"
                self._dismiss(session, EngineDead(f"{why}: its requests were aborted"))

    def _look_after_lost(self, session: Session, now: float) -> None:
        """A Unix socket breaks when its process ends; a network may come back."""
        if session.lost_at is None:
            session.lost_at = now
        if self._door.address.is_local or now - session.lost_at > self._served.resume:
            self._forget(session)

    def _hear(self, arrival: Arrival, now: float) -> None:
        try:
            message = _DECODER.decode(arrival.body)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
            self.num_damaged += 1
            self._control.refuse_unread(arrival)
            return
        if arrival.peer.is_control:
            self.num_damaged += not self._control.hear(arrival, message)
        elif "submit" not in arrival.roles:
            self._say(arrival.peer, Ended(kind="ConfigError", message="this key has not the role submit"))
        elif isinstance(message, Hello):
            self._welcome(arrival, message, now)
        elif (session := self._by_peer.get(arrival.peer)) is None:
            self.num_damaged += 1  # it has not said hello, or was sent away
        else:
            self._hear_session(session, arrival.peer, message, now)

    def _hear_session(self, session: Session, peer: Peer, message: FromFront, now: float) -> None:
        match message:
            case Submit():
                session.submit(message)
            case Taken():
                session.heard_at = now
                session.taken(message)
            case AbortRequest():
                session.abort(message.request_id)
            case CheckRequest():
                self._control.check(peer, message)
            case Ping():
                self._say(peer, Pong())
            case Goodbye():
                self._forget(session)
            case _:
                self.num_damaged += 1

    def _welcome(self, arrival: Arrival, hello: Hello, now: float) -> None:
        if hello.protocol != FRONT_PROTOCOL:
            message = (
                f"the engine speaks front end protocol {FRONT_PROTOCOL}, not {hello.protocol}: use the same release"
            )
            self._say(arrival.peer, Ended(kind="ConfigError", message=message))
            return
        session = self._sessions.get(hello.session) if hello.session else self._new_session(arrival.peer, now)
        if session is None:
            error = (
                EngineDead("the connection was lost for too long: the requests were aborted")
                if hello.session
                else EngineBusy(f"the engine has {_MAX_SESSIONS} front ends, and takes no more: close one of them")
            )
            kind, message, _ = told(error)
            self._say(arrival.peer, Ended(kind=kind, message=message))
            return
        session.heard_at = now
        if hello.session:
            self._by_peer = {peer: one for peer, one in self._by_peer.items() if one is not session}
            session.take_up(arrival.peer, hello.arrived)
        self._by_peer[arrival.peer] = session
        port = self._door.control_address.port
        served = dataclasses.replace(
            self._served, in_force=self._port.in_force, limits=self._port.limits
        )  # a swap changes them
        greeting = welcome(served, session=session.name, roles=arrival.roles, known=session.known, control_port=port)
        session.send(greeting)
        session.pump_all()

    def _new_session(self, peer: Peer, now: float) -> Session | None:
        if len(self._sessions) >= _MAX_SESSIONS or peer in self._by_peer:
            return None
        self._num_sessions += 1
        name = f"{self._names.getrandbits(128):032x}"
        session = self._sessions[name] = Session(
            name, self._num_sessions, peer, door=self._door, port=self._port, on_news=self._on_news, now=now
        )
        return session

    def _on_news(self, session: Session, stream: Stream) -> None:
        """Called by the engine's thread."""
        self._news.append((session, stream))
        self._door.wake()

    def _say_later(self, peer: Peer, message: ToFront) -> None:
        """Called by any thread."""
        self._answers.append((peer, message))
        self._door.wake()

    def _say(self, peer: Peer, message: ToFront) -> None:
        self._door.send(peer, _ENCODER.encode(message))

    def _dismiss(self, session: Session, error: EnginebayError) -> None:
        kind, message, _ = told(error)
        session.send(Ended(kind=kind, message=message))
        self._forget(session)

    def _forget(self, session: Session) -> None:
        """Its requests are aborted: their blocks come back with the engine's next step."""
        session.end()
        self._sessions.pop(session.name, None)
        self._by_peer = {peer: one for peer, one in self._by_peer.items() if one is not session}

    def _say_farewell(self, end: EnginebayError) -> None:
        self._flush()
        kind, message, _ = told(end)
        for session in self._sessions.values():
            session.pump_all()
            session.send(Ended(kind=kind, message=message))
