"""The worker's end of a socket line."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

import msgspec
import zmq
from zmq.constants import Event

from enginebay.messages import WorkerInfo
from enginebay.runtime import ChannelClosed
from enginebay.transport.codec import encode_reply
from enginebay.transport.curve import KeyPair, secure_client
from enginebay.transport.socket_wire import (
    BEAT,
    CALL,
    END,
    HELLO,
    LEAVE,
    REPLY,
    WELCOME,
    Ticket,
    limit,
    next_event,
)

__all__ = ["SocketChannel"]

_TICKET: Final = msgspec.msgpack.Decoder(Ticket)
_RETRY_SECONDS: Final = 0.1
_LINGER_MS: Final = 2000
_MAX_LAST_WORDS: Final = 8192
_GONE: Final = (Event.DISCONNECTED, Event.CLOSED)
_REFUSED: Final = (Event.HANDSHAKE_FAILED_AUTH,)


class SocketChannel:
    """A ``WorkerChannel`` to the engine whose ``SocketLine`` wrote the ticket. Made by ``connect``.

    One thread calls all of it, but for ``closed``. A connection that was lost is not made anew: the channel is closed
    for good, ``receive`` returns None and ``reply`` raises ``ChannelClosed``.
    """

    def __init__(self, context: zmq.Context[Any], socket: zmq.Socket[Any], monitor: zmq.Socket[Any], ticket: Ticket):
        self._context, self._socket, self._monitor = context, socket, monitor
        self._patience_ms = int(ticket.heartbeat * 3000)
        self._closed = False
        self._given_back = False

    @classmethod
    def connect(cls, ticket: bytes, info: WorkerInfo, deadline: float | None) -> SocketChannel:
        """Come in as the worker ``info``; returns when the engine has taken the HELLO.

        Raises ``TimeoutError`` at ``deadline`` (monotonic seconds), ``ChannelClosed`` when the engine does not let
        this ticket in, and ``ValueError`` for bytes that are no ticket.
        """
        known = _TICKET.decode(ticket)
        context: zmq.Context[Any] = zmq.Context()
        try:
            while True:
                channel = _attempt(context, known, info, deadline)
                if channel is not None:
                    return channel
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"the engine at {known.address} did not let rank {info.rank} in before its time")
                time.sleep(_RETRY_SECONDS if left is None else min(_RETRY_SECONDS, left))
        except BaseException:
            context.destroy(linger=0)
            raise

    def receive(self, deadline: float | None) -> bytes | None:
        while not self._closed:
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                if self._lost():
                    break
                if not self._wait(zmq.POLLIN, deadline):
                    raise TimeoutError("no call before the deadline") from None
                continue
            if parts[0] == CALL and len(parts) == 2:
                return parts[1]
            if parts[0] == END:
                self._closed = True
        return None

    def reply(self, generation: int, call_id: int, payload: bytes) -> None:
        self._send(REPLY, encode_reply(generation, call_id, payload))

    def heartbeat(self, phase: str) -> None:
        if self._closed:
            return  # nobody listens; the next receive says so
        self._send(BEAT, phase.encode()[:256])

    def closed(self) -> bool:
        return self._closed

    def close(self, last_words: str = "") -> None:
        """Leave: in good order, or with the last lines of what went wrong. Idempotent, bounded."""
        if self._given_back:
            return
        self._given_back = True
        if not self._closed and not self._lost():
            self._closed = True
            with contextlib.suppress(zmq.Again):  # the engine reads nothing any more: it will see the connection go
                self._socket.send_multipart([LEAVE, last_words.encode()[-_MAX_LAST_WORDS:]], zmq.NOBLOCK)
        self._closed = True
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close(linger=_LINGER_MS)
        self._context.term()

    def _send(self, kind: bytes, body: bytes) -> None:
        until = time.monotonic() + self._patience_ms / 1000
        while not self._closed and not self._lost():
            try:
                self._socket.send_multipart([kind, body], zmq.NOBLOCK)
            except zmq.Again:
                if not self._wait(zmq.POLLOUT, until):
                    self._closed = True
                continue
            return
        raise ChannelClosed("the engine has hung up")

    def _wait(self, events: int, deadline: float | None) -> bool:
        """Until the socket is ready or its connection has gone; False: the deadline has passed."""
        poller = zmq.Poller()
        poller.register(self._socket, events)
        poller.register(self._monitor, zmq.POLLIN)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return bool(poller.poll(None if left is None else int(left * 1000) + 1)) or left is None

    def _lost(self) -> bool:
        """Whether the connection has gone, as its monitor tells."""
        while (event := next_event(self._monitor)) is not None:
            if event in _GONE:
                self._closed = True
        return self._closed


def _attempt(
    context: zmq.Context[Any], ticket: Ticket, info: WorkerInfo, deadline: float | None
) -> SocketChannel | None:
    """One connection; None: it failed, and may be tried again."""
    socket = context.socket(zmq.DEALER)
    limit(socket, ticket.heartbeat)
    socket.setsockopt(zmq.RECONNECT_IVL, -1)  # ZeroMQ would reconnect in silence, and lose what was on its way
    socket.setsockopt(zmq.ROUTING_ID, ticket.routing_id)
    socket.setsockopt(zmq.IPV6, int("[" in ticket.address))
    if ticket.server_public:
        secure_client(socket, KeyPair(public=ticket.public, secret=ticket.secret), ticket.server_public)
    monitor = socket.get_monitor_socket()
    channel = SocketChannel(context, socket, monitor, ticket)
    socket.connect(ticket.address)
    with contextlib.suppress(zmq.Again):  # it has been refused or has broken by now: the monitor says which
        socket.send_multipart([HELLO, msgspec.msgpack.encode(info)], zmq.NOBLOCK)
    while channel._wait(zmq.POLLIN, deadline):
        if socket.poll(0) and socket.recv_multipart()[0] == WELCOME:
            return channel
        while (event := next_event(monitor)) is not None:
            if event in _REFUSED:
                raise ChannelClosed(f"the engine at {ticket.address} refuses the key of rank {info.rank}")
            if event in _GONE:
                socket.disable_monitor()
                monitor.close()
                socket.close(linger=0)
                return None
    raise TimeoutError(f"the engine at {ticket.address} did not answer the HELLO of rank {info.rank} before its time")
