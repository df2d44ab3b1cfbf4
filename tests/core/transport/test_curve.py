"""CURVE: who is on the list comes in, and nobody else, whatever they try."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from enginebay.transport.curve import Gate, KeyPair, new_keys, secure_client, secure_server

PATIENCE_MS = 30_000


class Server:
    """A server behind a gate, on loopback."""

    def __init__(self, *allowed: bytes) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.keys = new_keys()
        self.gate = Gate(self.context, allowed)
        self.socket = self.context.socket(zmq.PULL)
        secure_server(self.socket, self.keys, self.gate)
        self.socket.bind("tcp://127.0.0.1:*")
        endpoint = self.socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        self.endpoint = endpoint.rstrip(b"\0").decode()

    def close(self) -> None:
        self.gate.close()
        self.socket.close(linger=0)
        self.context.term()


@pytest.fixture
def known() -> KeyPair:
    return new_keys()


@pytest.fixture
def server(known: KeyPair) -> Iterator[Server]:
    server = Server(known.public)
    yield server
    server.close()


def comes_in(server: Server, keys: KeyPair | None, pinned: bytes | None = None) -> bool:
    """Whether a client's message arrives; False as soon as its handshake has failed."""
    context: zmq.Context[Any] = zmq.Context()
    client = context.socket(zmq.PUSH)
    client.linger = 0
    if keys is not None:
        secure_client(client, keys, server.keys.public if pinned is None else pinned)
    monitor = client.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    poller = zmq.Poller()
    poller.register(server.socket, zmq.POLLIN)
    poller.register(monitor, zmq.POLLIN)
    try:
        client.connect(server.endpoint)
        client.send(b"hello", zmq.NOBLOCK)
        ready = dict(poller.poll(PATIENCE_MS))
        assert ready, "neither let in nor turned away"
        return server.socket in ready and server.socket.recv() == b"hello"
    finally:
        client.disable_monitor()
        monitor.close()
        client.close()
        context.term()


def test_a_key_on_the_list_comes_in(server: Server, known: KeyPair) -> None:
    assert comes_in(server, known)
    assert server.gate.num_refused == 0


def test_a_key_that_is_not_on_the_list_is_turned_away(server: Server, known: KeyPair) -> None:
    assert not comes_in(server, new_keys())
    assert server.gate.num_refused > 0
    assert comes_in(server, known)


def test_a_client_without_curve_is_turned_away(server: Server, known: KeyPair) -> None:
    assert not comes_in(server, None)
    assert comes_in(server, known)


def test_a_known_public_key_without_its_secret_is_turned_away(server: Server, known: KeyPair) -> None:
    assert not comes_in(server, KeyPair(public=known.public, secret=new_keys().secret))


def test_a_client_that_pins_another_server_does_not_speak_to_this_one(server: Server, known: KeyPair) -> None:
    assert not comes_in(server, known, pinned=new_keys().public)


def test_keys_are_allowed_and_revoked_while_it_runs(server: Server) -> None:
    late = new_keys()
    server.gate.allow(late.public)
    assert comes_in(server, late)
    server.gate.revoke(late.public)
    assert not comes_in(server, late)
    server.gate.revoke(late.public)


def test_a_closed_gate_turns_everybody_away(server: Server, known: KeyPair) -> None:
    server.gate.close()
    server.gate.close()
    assert not comes_in(server, known)


def test_a_context_has_one_gate() -> None:
    context: zmq.Context[Any] = zmq.Context()
    gate = Gate(context)
    with pytest.raises(zmq.ZMQError, match="Address already in use"):
        Gate(context)
    gate.close()
    again = Gate(context)
    again.close()
    context.term()


def test_a_gate_ends_with_its_context() -> None:
    context: zmq.Context[Any] = zmq.Context()
    gate = Gate(context)
    context.term()
    gate.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "enginebay-gate"]


def test_the_secret_key_is_not_shown() -> None:
    keys = new_keys()
    assert keys.secret.decode() not in repr(keys)
    assert keys != new_keys()
