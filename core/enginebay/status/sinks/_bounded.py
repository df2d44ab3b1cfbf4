"""A connection to an HTTP server that is over by one deadline, however slowly the server says whatever it says.

``http.client`` bounds each read alone: who sends a byte a second, or ``100 Continue`` for ever, keeps it reading.
"""

from __future__ import annotations

import io
import socket
import ssl
from http.client import HTTPConnection
from typing import Any

from enginebay.status.sinks._deadline import Deadline
from enginebay.status.sinks._names import Names

__all__ = ["bounded_connection"]


def bounded_connection(host: str, port: int, tls: bool, deadline: Deadline, names: Names) -> HTTPConnection:
    """One that is not open yet. Whatever waits on it, to find the host by its name, to connect, to send or to receive,
    raises ``TimeoutError`` at the deadline."""
    return (_Tls if tls else _Plain)(host, port, deadline, names)


class _Plain(HTTPConnection):
    def __init__(self, host: str, port: int, deadline: Deadline, names: Names) -> None:
        super().__init__(host, port)
        self._deadline, self._names = deadline, names

    def connect(self) -> None:
        self.sock: Any = _Socket(self._opened(), self._deadline)

    def _opened(self) -> socket.socket:
        error: OSError | None = None
        for family, kind, protocol, address in self._names.addresses(self.host, self.port, self._deadline):
            opened = socket.socket(family, kind, protocol)
            try:
                opened.settimeout(self._deadline.left())
                opened.connect(address)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as refused:
                opened.close()
                error = error or refused
            else:
                return opened
        raise error or OSError(f"the name {self.host} has no address")


class _Tls(_Plain):
    def _opened(self) -> socket.socket:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        plain = super()._opened()
        try:
            secure = context.wrap_socket(plain, server_hostname=self.host, do_handshake_on_connect=False)
        except BaseException:
            plain.close()
            raise
        try:
            secure.settimeout(self._deadline.left())
            secure.do_handshake()
        except BaseException:
            secure.close()
            raise
        return secure


class _Socket:
    """What ``http.client`` asks of a socket."""

    def __init__(self, opened: socket.socket, deadline: Deadline) -> None:
        self._opened, self._deadline = opened, deadline

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            self._opened.settimeout(self._deadline.left())
            rest = rest[self._opened.send(rest) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb", "answers are read"
        return io.BufferedReader(_Reader(self._opened, self._deadline))

    def close(self) -> None:
        self._opened.close()


class _Reader(io.RawIOBase):
    """Reads on while the socket itself is closed already, as a socket's own file does."""

    def __init__(self, opened: socket.socket, deadline: Deadline) -> None:
        self._opened, self._deadline = opened, deadline
        self._file = opened.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int | None:
        self._opened.settimeout(self._deadline.left())
        return self._file.readinto(into)

    def close(self) -> None:
        self._file.close()
        super().close()
