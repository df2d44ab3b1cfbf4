"""The engine's listening sockets for front ends: one for requests, one for control, both driven by one thread.

A peer is known by the routing id that the socket chose for its connection; a peer cannot take over another's. A peer
that takes nothing has a bounded queue, and sending to it says so; to one that is gone as well.
"""

from __future__ import annotations

import contextlib
import os
import socket as sockets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from enginebay.errors import ConfigError
from enginebay.transport.curve import Gate, secure_server
from enginebay.transport.doorbell import Bell
from enginebay.transport.front_address import FrontAddress
from enginebay.transport.front_guard import WAIT_SECONDS, FrontGuard
from enginebay.transport.front_keys import ALL_ROLES, Role, ServerKeys

__all__ = ["MAX_FRONT_BYTES", "Arrival", "FrontDoor", "Peer", "Sent"]

MAX_FRONT_BYTES: Final = 64 * 1024 * 1024
"""The longest message of a front end. A batch of 500 prompts of 32,768 tokens takes about 50 MB."""

_PARTS: Final = 2  # the routing id, and one message
_QUEUED_IN: Final = 256
_QUEUED_OUT: Final = 1000
_MOST_AT_ONCE: Final = 256
_HEARTBEAT_MS: Final = 2000
_HEARTBEAT_TIMEOUT_MS: Final = 10_000


class Sent(Enum):
    """What became of a message."""

    QUEUED = 0
    FULL = 1
    GONE = 2


@dataclass(frozen=True)
class Peer:
    """One connection, to the socket for control or to that for requests."""

    routing_id: bytes
    is_control: bool


@dataclass(frozen=True)
class Arrival:
    """One message of a peer, with the roles that it has."""

    peer: Peer
    roles: tuple[Role, ...]
    body: bytes


class FrontDoor:
    """Binds at once; everything but ``wake`` is for one thread at a time. Raises ``ConfigError`` when it cannot."""

    def __init__(self, address: FrontAddress, keys: ServerKeys | None = None) -> None:
        if not address.is_local and keys is None:
            raise ConfigError(
                f"{address} can be reached by other users, so both ends need keys: give --keys FILE, which is made "
                "when it is not there; or use an ipc:// address"
            )
        self._keys = keys
        self.num_dropped = 0
        """Messages that were no message: of a wrong number of parts."""
        self.num_cut_off = 0
        """Connections that were ended for a message without an end."""
        with contextlib.ExitStack() as undo:
            self._wake = Bell()
            undo.callback(self._wake.close)
            context = zmq.Context()
            undo.callback(context.term)
            self._gate: Gate | None = None
            if keys is not None and not address.is_local:
                self._gate = Gate(context, keys.roles)
                undo.callback(self._gate.close)
            self._poller = zmq.Poller()
            self._poller.register(self._wake.fileno(), zmq.POLLIN)
            self._data, self._data_events, self.address = self._listen(undo, context, address)
            self._control, self._control_events, self.control_address = self._listen(
                undo, context, self.address.control()
            )
            self._guards = {
                is_control: FrontGuard(bound.port, MAX_FRONT_BYTES)
                for is_control, bound in ((False, self.address), (True, self.control_address))
                if not bound.is_local
            }
            self._heard: dict[bool, set[int]] = {False: set(), True: set()}
            self._undo = undo.pop_all()

    def receive(self, seconds: float) -> tuple[list[Arrival], bool]:
        """What has come, after at most so many seconds or a ``wake``; and whether somebody has left."""
        seconds = min(seconds, WAIT_SECONDS) if self._guards else seconds
        ready = dict(self._poller.poll(max(0, int(seconds * 1000))))
        if self._wake.fileno() in ready:
            self._wake.clear()
        arrivals: list[Arrival] = []
        for socket in (self._control, self._data):
            if socket in ready:
                arrivals += self._take(socket)
        self._happened(is_control=True)
        left = self._happened(is_control=False)
        if len(arrivals) < _MOST_AT_ONCE:  # then nothing waits to be taken
            for is_control, guard in self._guards.items():
                self.num_cut_off += guard.look(self._heard[is_control])
                self._heard[is_control].clear()
        return arrivals, left

    def _happened(self, *, is_control: bool) -> bool:
        """Take what a socket tells of its connections; whether one has ended."""
        events = self._control_events if is_control else self._data_events
        left = False
        while events.poll(0):
            event = recv_monitor_message(events)
            if event["event"] == zmq.EVENT_DISCONNECTED:
                left = True
            elif is_control in self._guards:
                self._guards[is_control].accepted(int(event["value"]))
        return left

    def send(self, peer: Peer, body: bytes) -> Sent:
        """Queue a message for a peer, and never wait."""
        socket = self._control if peer.is_control else self._data
        try:
            socket.send_multipart((peer.routing_id, body), zmq.NOBLOCK)
        except zmq.Again:
            return Sent.FULL
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return Sent.GONE
        return Sent.QUEUED

    def wake(self) -> None:
        """End a ``receive`` that waits, from any thread, also when all is closed by now."""
        self._wake.ring()

    def close(self, linger: float = 0.0) -> None:
        """Close the sockets and remove their files; what is queued has so many seconds to go out. Idempotent."""
        for socket in (self._control, self._data):
            if not socket.closed:
                socket.linger = int(linger * 1000)
        self._undo.close()

    def _listen(
        self, undo: contextlib.ExitStack, context: zmq.Context[Any], address: FrontAddress
    ) -> tuple[zmq.Socket[Any], zmq.Socket[Any], FrontAddress]:
        socket = context.socket(zmq.ROUTER)
        undo.callback(socket.close)
        socket.linger = 0
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.ROUTER_HANDOVER, 0),
            (zmq.MAXMSGSIZE, MAX_FRONT_BYTES),
            (zmq.RCVHWM, _QUEUED_IN),
            (zmq.SNDHWM, _QUEUED_OUT),
        ):
            socket.setsockopt(option, value)
        if not address.is_local:
            assert self._keys is not None, "checked when it was made"
            assert self._gate is not None, "made with the keys"
            secure_server(socket, self._keys.own, self._gate)
            socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        events = socket.get_monitor_socket(int(zmq.EVENT_DISCONNECTED | zmq.EVENT_ACCEPTED))
        undo.callback(events.close)
        undo.callback(socket.disable_monitor)
        bound = _bind(socket, address)
        if bound.path is not None:
            undo.callback(bound.path.unlink, missing_ok=True)
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(events, zmq.POLLIN)
        return socket, events, bound

    def _take(self, socket: zmq.Socket[Any]) -> Iterator[Arrival]:
        for _ in range(_MOST_AT_ONCE):
            try:
                parts = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            if len(parts) != _PARTS:
                self.num_dropped += 1
                continue
            peer = Peer(parts[0].bytes, socket is self._control)
            if self._guards:
                self._heard[peer.is_control].add(int(parts[1].get(zmq.SRCFD)))
            yield Arrival(peer, self._roles(parts[1]), parts[1].bytes)

    def _roles(self, frame: zmq.Frame) -> tuple[Role, ...]:
        """Everything to who reaches a Unix socket of mode 0600; else what the file says of the key."""
        if self._gate is None or self._keys is None:
            return ALL_ROLES
        user_id = frame.get("User-Id")
        return self._keys.roles.get(str(user_id).encode(), ())


def _bind(socket: zmq.Socket[Any], address: FrontAddress) -> FrontAddress:
    """Bind where nobody else listens; a Unix socket is our user's alone."""
    try:
        if address.path is not None:
            _check_free(address.path)
            mask = os.umask(0o177)
            try:
                socket.bind(str(address))
            finally:
                os.umask(mask)
            return address
        socket.bind(str(address))
    except zmq.ZMQError as error:
        why = str(error.strerror).partition(" (addr=")[0]  # which would name the address once more
        raise ConfigError(f"nothing can be bound to {address}: {why}; give another --address") from None
    port = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
    return FrontAddress(host=address.host, port=port)


def _check_free(path: Path) -> None:
    """A second bind would take the path from who listens there, and say nothing; what nobody listens to is removed."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"{path} is no socket, and is in the way: give another --address, or remove it")
    except FileNotFoundError:
        return
    with sockets.socket(sockets.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"{path} is in use, or cannot be looked at: {error.strerror}") from None
        else:
            raise ConfigError(f"another engine listens at {path}: give another --address, or stop that one")
