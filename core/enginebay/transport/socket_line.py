"""The engine's end of a socket line: one ROUTER, that only the workers with a ticket can speak to."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import zmq
from zmq.constants import Event

from enginebay.errors import one_line
from enginebay.messages import WorkerInfo
from enginebay.runtime import ChannelClosed, Spawner, Thread
from enginebay.transport.beat import Beat
from enginebay.transport.codec import DamagedMessage, decode_reply
from enginebay.transport.doorbell import Bell
from enginebay.transport.socket_endpoint import Endpoint
from enginebay.transport.socket_wire import (
    ALIVE,
    BEAT,
    CALL,
    END,
    HELLO,
    LEAVE,
    REPLY,
    WELCOME,
    next_event,
)

__all__ = ["SocketLine"]

_LOG = logging.getLogger("enginebay.transport")
_INFO: Final = msgspec.msgpack.Decoder(WorkerInfo)
_MAX_PHASE_BYTES: Final = 256
_MAX_LAST_WORDS: Final = 8192
_CLOSE_SECONDS: Final = 5.0
_LINGER_MS: Final = 500
_LOOK_AGAIN: Final = (0.0, 0.01, 0.05, 0.2, 1.0)
"""Seconds after a disconnect at which the ranks are tried: the event comes before the route has gone."""
_BURST: Final = 64


@dataclass(slots=True)
class _Peer:
    rank: int
    incarnation: str
    routing_id: bytes
    beat: Beat
    connected: bool = False
    gone: bool = False


class SocketLine:
    """Carries frames between the engine and the workers of ``incarnations`` (rank → incarnation).

    ``address`` is an IP address of this machine, for TCP with CURVE on a free port, or a folder of mode 0700, for a
    Unix socket in it. ``tickets`` holds one secret per rank, in the order of the ranks, for ``SocketChannel.connect``.

    The callbacks run in the line's thread and must not block: ``on_hello(info)`` when a worker has come,
    ``on_reply(rank, generation, call_id, payload)``, ``on_left(rank)`` when one ended in good order, and
    ``on_lost(rank, why)``, once, when one died, was silent for more than 3 ``heartbeat`` (s), or cannot be reached;
    nothing of that rank is told after it. What comes from strangers, or is damaged, is dropped and counted.
    Raises ``StartFailed`` when the address cannot be bound. ``record(kind, name)`` is told of a file before it is made.
    """

    def __init__(
        self,
        incarnations: Mapping[int, str],
        *,
        address: str,
        spawner: Spawner,
        on_hello: Callable[[WorkerInfo], None],
        on_reply: Callable[[int, int, int, bytes], None],
        on_lost: Callable[[int, str], None],
        on_left: Callable[[int], None] = lambda rank: None,
        heartbeat: float = 5.0,
        record: Callable[[str, str], None] = lambda kind, name: None,
    ) -> None:
        self._on_hello, self._on_reply, self._on_lost, self._on_left = on_hello, on_reply, on_lost, on_left
        self.num_dropped = 0
        """Messages that were of no worker of ours, of no known kind, damaged, or of a worker that was lost."""
        self._peers = {
            rank: _Peer(rank, incarnation, secrets.token_bytes(16).replace(b"\0", b"\1"), Beat())
            for rank, incarnation in sorted(incarnations.items())
        }
        self._ranks = {peer.routing_id: peer for peer in self._peers.values()}
        self._queue: deque[tuple[bytes, tuple[int, ...] | None]] = deque()
        self._tries: list[float] = []
        self._unreachable: list[_Peer] = []
        self._closing = False
        self._ident = 0
        self._lock = threading.Lock()
        endpoint = self._endpoint = Endpoint(
            {rank: peer.routing_id for rank, peer in self._peers.items()}, address, heartbeat, record
        )
        self.address, self.tickets = endpoint.address, endpoint.tickets
        self._router = endpoint.router
        self._wake = Bell()
        self._monitor = self._router.get_monitor_socket(Event.DISCONNECTED)
        self._thread: Thread = spawner.thread("enginebay-line", self._run)

    def send(self, frame: bytes, ranks: tuple[int, ...] | None = None) -> None:
        """Queue a frame of ``encode_envelope`` for the ranks (None: all) and return at once. Thread-safe, in order.

        Raises ``ChannelClosed`` after ``close``. A rank that is lost is passed over: ``on_lost`` has told of it.
        """
        with self._lock:
            if self._closing:
                raise ChannelClosed("the line to the workers is closed")
            self._queue.append((frame, ranks))
            self._wake.ring()

    def heartbeat(self, rank: int) -> Beat:
        """What that rank said last that it does, and when that arrived."""
        return self._peers[rank].beat

    def close(self) -> None:
        """Hang up: the workers' ``receive`` returns None. Idempotent, bounded, and allowed in a callback."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._wake.ring()
        if threading.get_ident() != self._ident:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        self._ident = threading.get_ident()
        try:
            poller = zmq.Poller()
            for one in (self._router, self._monitor, self._wake.fileno()):
                poller.register(one, zmq.POLLIN)
            while not self._closing:
                ready = dict(poller.poll(self._patience_ms()))
                if self._wake.fileno() in ready:
                    self._wake.clear()
                self._send_all()
                self._look_for_lost()
                if self._read_all():
                    self._lose_unreachable()
        except Exception as error:
            _LOG.exception("the line to the workers has failed")
            for peer in self._peers.values():
                self._lose(peer, one_line(f"the line to the workers has failed: {type(error).__name__}: {error}"))
        finally:
            self._hang_up()

    def _patience_ms(self) -> int | None:
        if self._unreachable:
            return 0
        if not self._tries:
            return None
        return max(0, int((self._tries[0] - time.monotonic()) * 1000) + 1)

    def _send_all(self) -> None:
        while self._queue:
            frame, ranks = self._queue.popleft()
            for rank in self._peers if ranks is None else ranks:
                self._send(self._peers[rank], CALL, frame)

    def _send(self, peer: _Peer, kind: bytes, body: bytes) -> None:
        if peer.gone:
            return
        try:
            self._router.send_multipart([peer.routing_id, kind, body], zmq.NOBLOCK)
        except zmq.Again:
            self._lose(peer, "it has stopped reading its calls")
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._unreachable.append(peer)

    def _look_for_lost(self) -> None:
        """A disconnect does not say whose it was: try whom we can still reach."""
        now = time.monotonic()
        while (event := next_event(self._monitor)) is not None:
            if event == Event.DISCONNECTED:
                self._tries = [now + later for later in _LOOK_AGAIN]
        if self._tries and now >= self._tries[0]:
            self._tries = [later for later in self._tries if later > now]
            for peer in self._peers.values():
                if peer.connected:
                    self._send(peer, ALIVE, b"")

    def _lose_unreachable(self) -> None:
        """After all that has come from them was read: their last answers and words may be among it."""
        peers, self._unreachable = self._unreachable, []
        for peer in peers:
            self._lose(peer, "its connection was lost" if peer.connected else "it has not connected")

    def _read_all(self) -> bool:
        """What has come, but not so much that our own calls would have to wait for ever; whether that was all."""
        for _ in range(_BURST):
            try:
                parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            if not self._take(parts):
                self.num_dropped += 1
        return False

    def _take(self, parts: list[bytes]) -> bool:
        """Whether the message was one of a worker of ours, whole, and in its place."""
        peer = self._ranks.get(parts[0])
        if peer is None or peer.gone or len(parts) != 3:
            return False
        _, kind, body = parts
        if not peer.connected:
            return kind == HELLO and self._welcome(peer, body)
        if kind == REPLY:
            try:
                generation, call_id, payload = decode_reply(body)
            except DamagedMessage:
                return False
            self._on_reply(peer.rank, generation, call_id, payload)
            return True
        if kind == BEAT and len(body) <= _MAX_PHASE_BYTES:
            phase = one_line(body.decode(errors="replace"))
            peer.beat = Beat.said(phase, time.monotonic_ns())
            return True
        if kind == LEAVE and len(body) <= _MAX_LAST_WORDS:
            if body:
                self._lose(peer, body.decode(errors="replace"))
            else:
                peer.gone = True
                self._on_left(peer.rank)
            return True
        return False

    def _welcome(self, peer: _Peer, body: bytes) -> bool:
        try:
            info = _INFO.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
            return False
        if (info.rank, info.incarnation) != (peer.rank, peer.incarnation):
            return False
        peer.connected = True
        peer.beat = Beat.said("start", time.monotonic_ns())
        self._send(peer, WELCOME, b"")
        if not peer.gone:
            self._on_hello(info)
        return True

    def _lose(self, peer: _Peer, why: str) -> None:
        if peer.gone:
            return
        peer.gone = True
        self._on_lost(peer.rank, why)

    def _hang_up(self) -> None:
        with self._lock:
            self._closing = True  # also when the thread has failed: nobody would send what is queued
        for peer in self._peers.values():
            if peer.connected and not peer.gone:
                peer.gone = True
                self._farewell(peer)
        self._router.disable_monitor()
        self._monitor.close()
        self._router.linger = _LINGER_MS
        self._endpoint.close()
        self._wake.close()

    def _farewell(self, peer: _Peer) -> None:
        try:
            self._router.send_multipart([peer.routing_id, END, b""], zmq.NOBLOCK)
        except zmq.ZMQError:
            return  # it has gone, or reads nothing: it notices the closed connection
