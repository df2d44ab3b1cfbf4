"""What both ends of a socket line agree on: the ticket of a worker, the kinds of message, the limits of a socket."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import zmq
from zmq.constants import Event

from enginebay.transport.codec import MAX_FRAME_BYTES

__all__ = ["ALIVE", "BEAT", "CALL", "END", "HELLO", "LEAVE", "REPLY", "WELCOME", "Ticket", "limit", "next_event"]

# The first of a message's two parts, from the worker …
HELLO: Final = b"H"  # a WorkerInfo, once
REPLY: Final = b"R"  # a frame of encode_reply
BEAT: Final = b"B"  # the phase that the worker enters, as text
LEAVE: Final = b"L"  # the last message: empty, or the last lines of a worker that failed
# … and from the engine
WELCOME: Final = b"W"  # the HELLO was taken
CALL: Final = b"C"  # a frame of encode_envelope
ALIVE: Final = b"A"  # nothing: sent to learn whether the worker can be reached
END: Final = b"E"  # the engine hangs up in good order

_OVERHEAD_BYTES: Final = 1024  # CURVE wraps each part in a box of its own
_QUEUED_MESSAGES: Final = 256


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """All that one worker needs to come in, and nobody else may have: address, name and keys.

    ``routing_id`` is drawn by the engine, and the line knows no other. Keys are empty on a socket in a folder.
    """

    rank: int
    address: str
    routing_id: bytes
    heartbeat: float
    server_public: bytes = b""
    public: bytes = b""
    secret: bytes = b""

    def __repr__(self) -> str:
        return f"Ticket(rank={self.rank}, address={self.address!r})"


def limit(socket: zmq.Socket[Any], heartbeat: float) -> None:
    """Bound what a socket takes and keeps, and make both ends notice within 4 heartbeats (s) that the other is silent.

    ZeroMQ's own threads exchange these signs of life, so a worker that computes, or holds the interpreter's lock,
    is not taken for dead. A part that announces more than a frame may hold ends its connection before memory is taken.
    """
    socket.linger = 0
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + _OVERHEAD_BYTES)
    socket.setsockopt(zmq.SNDHWM, _QUEUED_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, _QUEUED_MESSAGES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, max(1, int(heartbeat * 1000)))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, max(1, int(heartbeat * 3000)))


def next_event(monitor: zmq.Socket[Any]) -> Event | None:
    """The next event of a socket's monitor, or None when there is none now."""
    try:
        head, _ = monitor.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None
    return Event(int.from_bytes(head[:2], "little"))
