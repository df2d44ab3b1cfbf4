"""CURVE for sockets that leave the process by TCP: keys made for one run, a pinned server, and a list of who may come.

CURVE alone encrypts and accepts any client. A ``Gate`` answers ZeroMQ's question (ZAP, RFC 27) for each handshake, and
``secure_server`` makes the socket refuse everybody while no gate is open. ``zmq.auth`` has a gate too; its ``stop``
waits without a bound for its thread, and for ever when that thread has died, so ours is its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import zmq
from zmq.utils import z85

from enginebay.transport.doorbell import Bell

__all__ = ["Gate", "KeyPair", "new_keys", "secure_client", "secure_server"]

_ENDPOINT: Final = "inproc://zeromq.zap.01"  # fixed by RFC 27: one handler in each context, reached by no network
_DOMAIN: Final = b"enginebay"
_JOIN_SECONDS: Final = 5.0
_HANDSHAKE_MS: Final = 10_000
"""A peer that has connected and says nothing is cut off after so long."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Two keys in ZeroMQ's printable form (Z85, 40 characters each). The secret one is not shown by ``repr``.

    It travels by an inherited pipe or inside a start message, never in arguments or the environment.
    """

    public: bytes
    secret: bytes = field(repr=False)


def new_keys() -> KeyPair:
    """A fresh pair, from the system's randomness."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public=public, secret=secret)


class Gate:
    """Lets in clients whose public key is allowed; nobody else. One for each ZeroMQ context, which it does not own.

    The answers are given by a thread of its own, which never blocks on a peer. Raises ``zmq.ZMQError`` (address in
    use) when the context has a gate already. Close the gate before the context is ended, which would wait for it.
    """

    def __init__(self, context: zmq.Context[Any], allowed: Iterable[bytes] = ()) -> None:
        self._allowed = frozenset(allowed)
        self._lock = threading.Lock()
        self.num_refused = 0
        """Handshakes that were refused."""
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        try:
            self._socket.bind(_ENDPOINT)
        except zmq.ZMQError:
            self._socket.close()
            raise
        self._wake = Bell()
        self._closed = False
        self._thread = threading.Thread(target=self._answer_all, name="enginebay-gate", daemon=True)
        self._thread.start()

    def allow(self, key: bytes) -> None:
        """Let this public key in from now on."""
        with self._lock:
            self._allowed |= {key}

    def revoke(self, key: bytes) -> None:
        """Refuse this public key from now on; a connection that it has already stays."""
        with self._lock:
            self._allowed -= {key}

    def close(self) -> None:
        """Refuse everybody from now on. Idempotent; connections that are up stay."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._wake.ring()
        self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():
            self._wake.close()

    def _answer_all(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake.fileno(), zmq.POLLIN)
        try:
            while not self._closed:
                if self._socket in dict(poller.poll()):
                    self._socket.send_multipart(self._answer(self._socket.recv_multipart()))
            self._socket.unbind(_ENDPOINT)  # a close alone leaves the name taken for a while
        except zmq.ContextTerminated:
            return  # the context was ended first: nobody can ask any more
        finally:
            self._socket.close()

    def _answer(self, question: list[bytes]) -> list[bytes]:
        """Version, request id, domain, address, routing id, mechanism, credentials: asked by libzmq itself."""
        version, request_id = question[0], question[1]
        welcome = question[2] == _DOMAIN and question[5] == b"CURVE" and z85.encode(question[6]) in self._allowed
        if welcome:
            return [version, request_id, b"200", b"OK", z85.encode(question[6]), b""]
        self.num_refused += 1
        return [version, request_id, b"400", b"not on the list", b"", b""]


def secure_server(socket: zmq.Socket[Any], keys: KeyPair, gate: Gate) -> None:
    """Make a socket, before it is bound, speak CURVE only, and only with those whom ``gate`` lets in."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without it a context whose gate has closed lets everybody in
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)


def secure_client(socket: zmq.Socket[Any], keys: KeyPair, server_public: bytes) -> None:
    """Make a socket, before it connects, speak CURVE only, and only with the server that owns ``server_public``."""
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    socket.setsockopt(zmq.CURVE_SERVERKEY, server_public)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
