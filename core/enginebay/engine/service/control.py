"""What front ends ask beside requests: questions and commands, each with the role that it wants, and their answers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import msgspec

from enginebay.engine.port import EnginePort
from enginebay.engine.service.telling import Telling
from enginebay.engine.service.words import ask_of, told
from enginebay.errors import EnginebayError, EngineDead, InvalidRequest
from enginebay.messages import (
    Answer,
    AskControl,
    AskStats,
    CheckRequest,
    Control,
    ControlDone,
    FromFront,
    Ping,
    Pong,
    ReadStatus,
    Refusal,
    Stats,
    StopEngine,
    ToFront,
)
from enginebay.runtime import Clock
from enginebay.transport.front_door import Arrival, Peer
from enginebay.transport.front_keys import Role

__all__ = ["ControlTalk"]

_ENCODER: Final = msgspec.msgpack.Encoder()
_CHECK: Final = CheckRequest.__struct_config__.tag


class _Head(msgspec.Struct):
    """What every question has, whatever else is in it."""

    type: str
    number: int


_HEAD: Final[msgspec.msgpack.Decoder[_Head]] = msgspec.msgpack.Decoder(_Head)

Say = Callable[[Peer, ToFront], None]


class ControlTalk:
    """Answers in the service's thread by ``say``, and from any thread by ``later``, which hands over to ``say``."""

    def __init__(
        self,
        port: EnginePort,
        clock: Clock,
        *,
        say: Say,
        later: Say,
        on_stop: Callable[[], None],
        tell: Callable[[str], None],
    ) -> None:
        self._port = port
        self._clock = clock
        self._say = say
        self._later = later
        self._on_stop = on_stop
        self._telling = Telling(tell, clock)

    def hear(self, arrival: Arrival, message: FromFront) -> bool:
        """Answer, now or when the engine has; False: this is no message for control."""
        match message:
            case AskStats():
                if self._may(arrival, "observe", message.number):
                    self._ask(arrival.peer, message.number, self._port.ask_stats, _stats_message)
            case AskControl(command=StopEngine()):
                if self._may(arrival, "control", message.number):
                    self._say(arrival.peer, Answer(number=message.number))
                    self._telling.stopping()
                    self._on_stop()
            case AskControl():
                role: Role = "observe" if isinstance(message.command, ReadStatus) else "control"
                if self._may(arrival, role, message.number):
                    ask = partial(self._told, message.command)
                    self._ask(arrival.peer, message.number, ask, _answer_message)
            case Ping():
                self._say(arrival.peer, Pong())
            case _:
                return False
        return True

    def refuse_unread(self, arrival: Arrival) -> None:
        """Tell who asked that the question could not be read, if so much of it can be that there is a number."""
        try:
            head = _HEAD.decode(arrival.body)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
            return
        if arrival.peer.is_control or head.type == _CHECK:
            error = InvalidRequest("the engine cannot read what it was asked: use the same release at both ends")
            self._say(arrival.peer, _refusal(head.number, error))

    def check(self, peer: Peer, check: CheckRequest) -> None:
        """Say what is wrong with a request."""
        try:
            self._port.validate(ask_of(check.request))
        except EnginebayError as error:
            self._say(peer, _refusal(check.number, error))
        else:
            self._say(peer, Answer(number=check.number))

    def _told(self, command: Control) -> Future[ControlDone]:
        ended = self._telling.begun(command)
        try:
            done = self._port.control(command)
        except EnginebayError as error:
            done = Future()
            done.set_exception(error)
        done.add_done_callback(ended)
        return done

    def _may(self, arrival: Arrival, role: Role, number: int) -> bool:
        if role not in arrival.roles:
            has = ", ".join(arrival.roles) or "none"
            error = InvalidRequest(f"that wants the role {role}, and this key has: {has}")
            self._say(arrival.peer, _refusal(number, error))
        return role in arrival.roles

    def _ask(
        self, peer: Peer, number: int, ask: Callable[[], Future[Any]], message: Callable[[int, Any], ToFront]
    ) -> None:
        """Ask the engine, and answer the peer when the engine has."""

        def answer(done: Future[Any]) -> None:
            error = done.exception()
            if error is None:
                self._later(peer, message(number, self._clock.wait_future(done, None)))
            else:
                self._later(peer, _refusal(number, error))

        try:
            ask().add_done_callback(answer)
        except EnginebayError as error:
            self._say(peer, _refusal(number, error))


def _stats_message(number: int, stats: Any) -> ToFront:
    return Stats(number=number, stats=_ENCODER.encode(stats))


def _answer_message(number: int, done: ControlDone) -> ToFront:
    return Answer(number=number, done=done)


def _refusal(number: int, error: BaseException) -> Refusal:
    shown = error if isinstance(error, EnginebayError) else EngineDead(f"{type(error).__name__}: {error}")
    kind, message, param = told(shown)
    return Refusal(number=number, kind=kind, message=message, param=param)
