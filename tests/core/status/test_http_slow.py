"""Servers that answer without an end: a call of the HTTP sink is over by its deadline, and is tried again later."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress

import msgspec
import pytest

from enginebay.interfaces import StatusSink, StatusSinkContext, Stored
from enginebay.messages import Phase, Slot, StatusRecord
from enginebay.status import SinkSync, StatusBook
from enginebay.status.sinks import http
from enginebay.status.sinks.http import HttpSink, HttpSinkOptions
from support.status import SLOT, status

RECORD = StatusRecord(status=status(Phase.READY, message="x" * 200), version=1)
BODY = msgspec.json.encode(RECORD)
HEAD = b'HTTP/1.1 200 OK\r\nETag: "1"\r\n'

ANSWERS: dict[str, Callable[[], Iterator[bytes]]] = {
    "a body byte by byte": lambda: itertools.chain(
        [HEAD + b"Content-Length: 100000\r\n\r\n"], itertools.repeat(b" ", 100000)
    ),
    "a body in chunks of one byte": lambda: itertools.chain(
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n"], itertools.repeat(b"1\r\n \r\n")
    ),
    "a body that ends with the line": lambda: itertools.chain([HEAD + b"\r\n"], itertools.repeat(b" ")),
    "100 Continue": lambda: itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "headers": lambda: itertools.chain([HEAD], (b"X-%d: y\r\n" % number for number in itertools.count())),
    "a header byte by byte": lambda: itertools.chain([HEAD, b"X: "], itertools.repeat(b"y")),
    "a status byte by byte": lambda: itertools.chain([b"HTTP/1.1 200 "], itertools.repeat(b"y")),
    "headers behind 100 Continue": lambda: itertools.chain(
        [b"HTTP/1.1 100 Continue\r\n"], (b"X-%d: y\r\n" % number for number in itertools.count())
    ),
}
_BETWEEN = 0.01
"""Seconds between two bytes of a server: far less than the deadline, which each of them would begin anew."""
_PIECES = 1000
"""So many, and it hangs up: a client without a deadline fails otherwise, and then."""


class _Server:
    """Answers every connection with ``answer``, bit by bit, until the client or the test has gone."""

    def __init__(self, answer: Callable[[], Iterator[bytes]]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._answer = answer
        self._over = threading.Event()
        self.connections = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/workers"

    def close(self) -> None:
        self._over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(30)

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._threads.append(threading.Thread(target=self._drip, args=(line,)))
            self._threads[-1].start()

    def _drip(self, line: socket.socket) -> None:
        with line, suppress(OSError):
            line.recv(1 << 16)  # what is asked: the kernel resets a line on which something is unread
            for piece in itertools.islice(self._answer(), _PIECES):
                line.sendall(piece)
                if self._over.wait(_BETWEEN):
                    return


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[], Iterator[bytes]]], _Server]]:
    servers: list[_Server] = []

    def made(answer: Callable[[], Iterator[bytes]]) -> _Server:
        servers.append(_Server(answer))
        return servers[-1]

    yield made
    for server in servers:
        server.close()


def _sink(url: str, timeout: float = 0.3) -> HttpSink:
    return HttpSink(StatusSinkContext(options=HttpSinkOptions(url=url, timeout=timeout), engine="one", wall=lambda: 0))


CALLS: dict[str, Callable[[StatusSink[HttpSinkOptions]], object]] = {
    "read": lambda sink: sink.read(SLOT),
    "write": lambda sink: sink.write(RECORD, ""),
    "remove": lambda sink: sink.remove(SLOT, "a"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_call_is_over_by_its_deadline(serve: Callable[..., _Server], answer: str) -> None:
    sink = _sink(serve(ANSWERS[answer]).url)
    for call in CALLS.values():
        with pytest.raises(OSError, match=r": TimeoutError: (timed out|The read operation timed out)$"):
            call(sink)


def test_one_deadline_is_for_all_that_a_call_asks(serve: Callable[..., _Server]) -> None:
    """A removal reads first, and looks again when what it saw has changed: each of it may be slow."""
    answer = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    slow = [answer[at : at + 40] for at in range(0, len(answer), 40)]
    refused = [b"HTTP/1.1 412 No\r\nContent-Length: 0\r\n\r\n"]
    answers = itertools.cycle([slow, refused])
    server = serve(lambda: iter(next(answers)))
    sink = _sink(server.url, timeout=len(slow) * _BETWEEN * 2.5)
    with pytest.raises(OSError, match=r"timed out$"):
        sink.remove(SLOT, "a")
    assert server.connections < 6, "three tries would have been six"


@pytest.mark.parametrize("answer", ANSWERS)
def test_it_is_tried_again_less_and_less_often(serve: Callable[..., _Server], answer: str) -> None:
    server = serve(ANSWERS[answer])
    now = [0.0]
    book = StatusBook(now=lambda: now[0], wall=lambda: now[0], lock=nullcontext(), sinks=["http"])
    sync = SinkSync("http", _sink(server.url, timeout=0.05), book, now=lambda: now[0], draw=lambda: 0.0)
    book.set(status(Phase.READY))
    waits = []
    for _ in range(4):
        sync.tick()
        waits.append((sync.due() or 0.0) - now[0])
        now[0] += waits[-1]
    assert waits == [0.5, 1.0, 2.0, 4.0]
    assert server.connections == 4
    assert (sync.health().failures, sync.health().behind) == (4, 1)


def test_what_is_slow_and_comes_in_time_is_taken(serve: Callable[..., _Server]) -> None:
    answer = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    sink = _sink(serve(lambda: iter([b"HTTP/1.1 100 Continue\r\n\r\n", answer[:50], answer[50:]])).url, timeout=30.0)
    assert sink.read(SLOT) == Stored(record=RECORD, tag='"1"')
    assert sink.records() == []
    assert sink.read(Slot(group=0, rank=1)) is not None


def test_a_server_that_takes_nothing_is_left_by_the_deadline() -> None:
    """The request is larger than what the kernels hold."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sink = _sink(f"http://127.0.0.1:{listener.getsockname()[1]}")
        large = StatusRecord(status=status(Phase.READY, message="x" * (16 << 20)), version=1)
        with pytest.raises(OSError, match=r"timed out$"):
            sink.write(large, "")


@pytest.mark.parametrize(
    ("url", "port"), [("http://[::1]/w", 80), ("https://[::1]/w", 443), ("http://[::1]:81/w", 81), ("http://a/w", 80)]
)
def test_the_port_of_an_address(url: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuses(host: str, number: int, tls: bool, deadline: object, names: object) -> None:
        asked.append(number)
        raise ConnectionRefusedError

    monkeypatch.setattr(http, "bounded_connection", refuses)
    sink = HttpSink(StatusSinkContext(options=HttpSinkOptions(url=url), engine="one", wall=lambda: 0))
    with pytest.raises(ConnectionRefusedError):
        sink.read(SLOT)
    assert asked == [port]
