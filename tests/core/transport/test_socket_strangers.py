"""Strangers and damaged messages on the line to workers elsewhere change nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Any

import msgspec
import psutil
import pytest
import zmq

from enginebay.runtime import ChannelClosed
from enginebay.transport import MAX_FRAME_BYTES, encode_reply, socket_wire
from enginebay.transport.curve import KeyPair, new_keys, secure_client
from enginebay.transport.socket import SocketChannel
from enginebay.transport.socket_wire import BEAT, HELLO, LEAVE, REPLY, WELCOME, Ticket
from support.lines import Echo, Line, MakeLine, wait_until


def ticket_of(line: Line, rank: int = 0) -> Ticket:
    return msgspec.msgpack.decode(line.line.tickets[rank], type=Ticket)


class Stranger:
    """A peer that speaks ZeroMQ and keeps none of our rules."""

    def __init__(self, ticket: Ticket, *, routing_id: bytes | None = None, keys: KeyPair | None = None) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.setsockopt(zmq.ROUTING_ID, ticket.routing_id if routing_id is None else routing_id)
        if ticket.server_public:
            own = KeyPair(public=ticket.public, secret=ticket.secret) if keys is None else keys
            secure_client(self.socket, own, ticket.server_public)
        self.socket.connect(ticket.address)

    def close(self) -> None:
        self._context.destroy(linger=0)


def test_strangers_are_dropped_and_change_nothing(make_line: MakeLine) -> None:
    line = make_line()
    echo = Echo(line.channel())
    ticket = ticket_of(line)
    guesses = [Stranger(ticket, routing_id=b"a guess"), Stranger(ticket)]  # the second has a name that is in use
    for stranger in guesses:
        for kind in (HELLO, REPLY, BEAT, LEAVE, WELCOME):
            stranger.socket.send_multipart([kind, encode_reply(0, 1, b"forged")])
        stranger.socket.send_multipart([b"x"] * 50)
    wait_until(lambda: line.line.num_dropped >= 6, "the drop of all that the first has said")
    assert line.works(0)
    assert (line.lost, line.left) == ([], [])
    assert all(reply[3] == b"still there?" for reply in line.replies)
    for stranger in guesses:
        stranger.close()
    assert line.works(0)
    line.line.close()
    assert echo.join()


def test_a_hello_of_another_life_or_rank_is_dropped(make_line: MakeLine) -> None:  # X1
    line = make_line(2)
    for info in (line.info(0, "life-before"), line.info(1)):
        before = line.line.num_dropped
        for seconds in (0.2, 2.0, 20.0):  # on a busy machine the HELLO itself may take longer than the shortest
            with pytest.raises(TimeoutError, match="did not answer the HELLO"):
                SocketChannel.connect(line.line.tickets[0], info, time.monotonic() + seconds)
            if line.line.num_dropped > before:
                break
        assert line.line.num_dropped > before
    assert line.hellos == []


def test_damaged_parts_of_a_worker_are_dropped_and_counted(make_line: MakeLine) -> None:
    line = make_line()
    ticket = ticket_of(line)
    worker = Stranger(ticket)
    hello = msgspec.msgpack.encode(line.info())
    bad = [
        [b""],
        [],
        [REPLY],
        [HELLO, b""],
        [HELLO, b"\xc1"],
        [HELLO, b"\x91" * 5000],
        [HELLO, hello + b"\0"],
        [REPLY, encode_reply(0, 1, b"before HELLO")],
    ]
    after = [
        [REPLY, b"short"],
        [HELLO, hello],
        [BEAT, b"x" * 5000],
        [LEAVE, b"x" * 50_000],
        [b"?", b""],
        [b"", b"", b"", b""],
        [REPLY, encode_reply(0, 1, b"x"), b""],
    ]
    for parts in bad:
        if parts:
            worker.socket.send_multipart(parts)
    worker.socket.send_multipart([HELLO, hello])
    wait_until(lambda: line.hellos, "HELLO")
    for parts in after:
        worker.socket.send_multipart(parts)
    worker.socket.send_multipart([REPLY, encode_reply(2, 3, b"good")])
    worker.socket.send_multipart([BEAT, b"\xff\x1b[2J idle"])
    wait_until(lambda: line.replies, "the good one")
    wait_until(lambda: line.line.heartbeat(0).phase.endswith("idle"), "the beat")
    assert line.replies == [(0, 2, 3, b"good")]
    assert line.line.num_dropped == len(bad) - 1 + len(after)
    assert line.line.heartbeat(0).phase.isprintable()
    assert line.lost == []
    worker.close()


@pytest.mark.parametrize("address", ["127.0.0.1"])
def test_who_was_refused_before_it_could_say_hello_does_not_wait(
    make_line: MakeLine, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = make_line()
    other = new_keys()
    wrong = msgspec.structs.replace(ticket_of(line), public=other.public, secret=other.secret)
    encode = msgspec.msgpack.encode

    def late(value: object) -> bytes:
        if value == line.info():
            time.sleep(0.5)  # in which the engine has refused the key, and the socket has nobody left to send to
        return encode(value)

    ticket = encode(wrong)
    monkeypatch.setattr(msgspec.msgpack, "encode", late)
    with pytest.raises(ChannelClosed, match="refuses the key of rank 0"):
        SocketChannel.connect(ticket, line.info(), time.monotonic() + 30)
    assert line.hellos == []


@pytest.mark.parametrize("address", ["127.0.0.1"])
def test_no_key_and_a_wrong_key_are_turned_away(make_line: MakeLine, address: str) -> None:
    line = make_line()
    good = ticket_of(line)
    other = new_keys()
    wrong = msgspec.structs.replace(good, public=other.public, secret=other.secret)
    with pytest.raises(ChannelClosed, match=r"the engine at tcp://127\.0\.0\.1:\d+ refuses the key of rank 0"):
        SocketChannel.connect(msgspec.msgpack.encode(wrong), line.info(), time.monotonic() + 30)
    plain = msgspec.structs.replace(good, server_public=b"")
    pinned = msgspec.structs.replace(good, server_public=other.public)
    for ticket in (plain, pinned):
        with pytest.raises(TimeoutError, match="did not"):
            SocketChannel.connect(msgspec.msgpack.encode(ticket), line.info(), time.monotonic() + 0.3)
    assert (line.hellos, line.line.num_dropped) == ([], 0)
    echo = Echo(line.channel())
    assert line.works(0)
    line.line.close()
    assert echo.join()


def test_a_ticket_is_for_its_own_rank(make_line: MakeLine) -> None:
    line = make_line(2)
    tickets = [ticket_of(line, rank) for rank in (0, 1)]
    assert tickets[0].routing_id != tickets[1].routing_id
    assert len(tickets[0].routing_id) == 16
    for ticket in tickets:
        assert ticket.secret.decode() not in repr(ticket) or not ticket.secret
        assert str(ticket.routing_id) not in repr(ticket)
    if tickets[0].secret:
        assert tickets[0].secret != tickets[1].secret
    with pytest.raises(msgspec.MsgspecError):
        SocketChannel.connect(b"no ticket", line.info(), None)


def connected(ticket: Ticket) -> socket.socket:
    if ticket.address.startswith("ipc://"):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(ticket.address.removeprefix("ipc://"))
    else:
        host, _, port = ticket.address.removeprefix("tcp://").rpartition(":")
        peer = socket.create_connection((host, int(port)))
    peer.settimeout(60)
    return peer


def is_closed(peer: socket.socket) -> bool:
    """Whether the other side hangs up."""
    try:
        while peer.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n" * 20, os.urandom(4096), b"\0" * 4096])
def test_a_peer_that_does_not_speak_zeromq_is_cut_off(make_line: MakeLine, garbage: bytes) -> None:
    line = make_line()
    echo = Echo(line.channel())
    with connected(ticket_of(line)) as peer:
        with contextlib.suppress(OSError):  # it was quicker
            peer.sendall(garbage)
            peer.shutdown(socket.SHUT_WR)
        assert is_closed(peer)
    assert line.works(0)
    line.line.close()
    assert echo.join()


def test_a_frame_that_announces_a_gigabyte_ends_its_connection(make_line: MakeLine) -> None:  # X8
    line = make_line()
    echo = Echo(line.channel())
    memory = psutil.Process().memory_info().rss
    mechanism = b"NULL" if ticket_of(line).address.startswith("ipc") else b"CURVE"
    with connected(ticket_of(line)) as peer:
        peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32))
        peer.sendall(b"\x06" + (1 << 30).to_bytes(8, "big") + b"some of it")  # a command as long as that
        assert is_closed(peer)
    assert psutil.Process().memory_info().rss - memory < 100 << 20
    assert line.works(0)
    line.line.close()
    assert echo.join()


def test_a_worker_that_sends_too_much_is_lost(make_line: MakeLine, monkeypatch: pytest.MonkeyPatch) -> None:  # X8
    monkeypatch.setattr(socket_wire, "MAX_FRAME_BYTES", 100_000)
    line = make_line()
    worker = Stranger(ticket_of(line))
    worker.socket.send_multipart([HELLO, msgspec.msgpack.encode(line.info())])
    wait_until(lambda: line.hellos, "HELLO")
    worker.socket.send_multipart([REPLY, encode_reply(0, 1, bytes(99_000))])
    wait_until(lambda: line.replies, "what is within the limit")
    worker.socket.send_multipart([REPLY, encode_reply(0, 2, bytes(200_000))])
    wait_until(lambda: line.lost, "the loss")
    assert [len(reply[3]) for reply in line.replies] == [99_000]
    worker.close()


def test_the_limit_is_that_of_a_frame(make_line: MakeLine) -> None:
    line = make_line()
    assert line.line._router.getsockopt(zmq.MAXMSGSIZE) == MAX_FRAME_BYTES + 1024
