"""A front end's connections to an engine: one for requests, one for control, both driven by one thread.

Each connection has a socket of its own, which is closed before it would reconnect by itself: what was queued for the
old connection must not reach the engine before the new one has said who it is.
"""

from __future__ import annotations

import socket as sockets
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from enginebay.errors import ConfigError, EngineDead
from enginebay.transport.curve import secure_client
from enginebay.transport.doorbell import Bell
from enginebay.transport.front_address import FrontAddress
from enginebay.transport.front_keys import ClientKeys

__all__ = ["Connected", "FrontWire", "Line", "Lost", "Received", "check_listening"]

_HEARTBEAT_MS: Final = 2000
_HEARTBEAT_TIMEOUT_MS: Final = 10_000
_CONNECT_TIMEOUT_MS: Final = 5000
_NEVER_MS: Final = 3_600_000
"""When to reconnect: long after the loss was told, and the socket closed.

With -1, or with ZMQ_IMMEDIATE, ZeroMQ drops what arrived just before the connection's end, and the last words with it.
"""
_MOST_AT_ONCE: Final = 1000
_QUEUED: Final = 1000

_UP: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_STRANGER: Final = "what listens there is no engine, or has other keys (--keys takes the FILE.client of its FILE)"
_REFUSED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_DOWN: Final = {
    int(zmq.EVENT_DISCONNECTED): "the connection was closed",
    int(zmq.EVENT_CLOSED): "nobody listens there",
    int(zmq.EVENT_CONNECT_RETRIED): "nobody listens there",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): _STRANGER,
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): _STRANGER,
    _REFUSED: "the engine does not let this key in",
}


class Line(Enum):
    """The two connections."""

    DATA = "data"
    CONTROL = "control"


@dataclass(frozen=True)
class Connected:
    """A connection is up: what is sent from now on arrives in order."""

    line: Line


@dataclass(frozen=True)
class Received:
    """A message of the engine."""

    line: Line
    body: bytes


@dataclass(frozen=True)
class Lost:
    """A connection is down, or could not be made, and why. ``refused``: trying again is of no use."""

    line: Line
    why: str
    refused: bool


class FrontWire:
    """Everything but ``wake`` is for one thread. ``receive`` tells what happens to the connections that were begun."""

    def __init__(self, address: FrontAddress, keys: ClientKeys | None) -> None:
        """Makes no connection yet. Raises ``ConfigError`` for TCP without keys."""
        if not address.is_local and keys is None:
            raise ConfigError(
                f"{address} wants keys: give the client's part of the engine's key file (--keys FILE.client)"
            )
        self._keys = keys
        self._context = zmq.Context()
        self._wake = Bell()
        self._poller = zmq.Poller()
        self._poller.register(self._wake.fileno(), zmq.POLLIN)
        self._open: dict[Line, tuple[zmq.Socket[Any], zmq.Socket[Any]]] = {}

    def connect(self, line: Line, address: FrontAddress) -> None:
        """Begin a connection, in place of an older one of this line."""
        self.hang_up(line)
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        for option, value in (
            (zmq.RECONNECT_IVL, _NEVER_MS),
            (zmq.CONNECT_TIMEOUT, _CONNECT_TIMEOUT_MS),
            (zmq.SNDHWM, _QUEUED),
            (zmq.RCVHWM, _QUEUED),
        ):
            socket.setsockopt(option, value)
        if not address.is_local:
            assert self._keys is not None, "checked when it was made"
            secure_client(socket, self._keys.own, self._keys.server_public)
            socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        events = socket.get_monitor_socket(_UP | sum(_DOWN))
        socket.connect(str(address))
        for one in (socket, events):
            self._poller.register(one, zmq.POLLIN)
        self._open[line] = socket, events

    def receive(self, seconds: float) -> list[Connected | Received | Lost]:
        """What has happened, in its order, after at most so many seconds or a ``wake``."""
        ready = dict(self._poller.poll(max(0, int(seconds * 1000))))
        if self._wake.fileno() in ready:
            self._wake.clear()
        happened: list[Connected | Received | Lost] = []
        for line, (socket, events) in tuple(self._open.items()):
            if socket in ready:
                happened += self._take(line, socket)
            if events in ready:
                while events.poll(0):
                    event = int(recv_monitor_message(events)["event"])
                    if event == _UP:
                        happened.append(Connected(line))
                    elif event in _DOWN:
                        while came := self._take(line, socket):  # before the end
                            happened += came
                        happened.append(Lost(line, _DOWN[event], event == _REFUSED))
                        self.hang_up(line)
                        break
        return happened

    def send(self, line: Line, body: bytes) -> bool:
        """Queue a message, without waiting; whether it was taken: not on a line that is down, or full."""
        if line not in self._open:
            return False
        try:
            self._open[line][0].send(body, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def wake(self) -> None:
        """End a ``receive`` that waits, from any thread, also when all is closed by now."""
        self._wake.ring()

    def hang_up(self, line: Line) -> None:
        """Close a connection, if there is one."""
        if line in self._open:
            socket, events = self._open.pop(line)
            for one in (socket, events):
                self._poller.unregister(one)
            socket.disable_monitor()
            events.close()
            socket.close()

    def close(self, linger: float = 0.0) -> None:
        """Close everything; what is queued has so many seconds to go out. Idempotent."""
        for socket, _ in self._open.values():
            socket.linger = int(linger * 1000)
        for line in tuple(self._open):
            self.hang_up(line)
        self._context.term()
        self._wake.close()

    def _take(self, line: Line, socket: zmq.Socket[Any]) -> list[Received]:
        taken = []
        for _ in range(_MOST_AT_ONCE):
            try:
                parts = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            taken += [Received(line, part) for part in parts[-1:]]
        return taken


def check_listening(address: FrontAddress) -> None:
    """Raise ``EngineDead`` when nobody listens at a Unix socket; over TCP, connecting tells."""
    if address.path is None:
        return
    with sockets.socket(sockets.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(address.path))
        except OSError as error:
            raise EngineDead(
                f"no engine listens at {address} ({error.strerror}): start one with 'enginebay up', or give the "
                "address that it printed"
            ) from None
