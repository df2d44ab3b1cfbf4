"""A watch over connections by TCP: one that sends a message without an end is cut off.

ZeroMQ limits a frame, not a message: it collects the frames of one for as long as more are announced, and shows nothing
of them before the last has come. The kernel counts what came by a connection, so what belongs to no message is known.
"""

from __future__ import annotations

import contextlib
import os
import socket as sockets
from collections.abc import Collection
from typing import Final

__all__ = ["WAIT_SECONDS", "FrontGuard"]

WAIT_SECONDS: Final = 0.1
"""The longest that the connections are not looked at."""

_SLACK_BYTES: Final = 8 * 1024 * 1024
"""What may wait in the kernel beside a message, and what encryption and signs of life add to it."""

_TCP_INFO_BYTES: Final = 136
_BYTES_RECEIVED: Final = slice(128, 136)
"""``tcpi_bytes_received`` in Linux's ``struct tcp_info``, since 4.1."""


class FrontGuard:
    """Of the connections to one listening port. ``limit``: the longest message, in bytes."""

    def __init__(self, port: int, limit: int) -> None:
        self._port, self._limit = port, limit + _SLACK_BYTES
        self._taken: dict[int, int] = {}
        self._suspects: set[int] = set()

    def accepted(self, descriptor: int) -> None:
        """There is a connection of this descriptor."""
        self._taken[descriptor] = 0

    def look(self, heard: Collection[int]) -> int:
        """Cut off those over the limit, and say how many; call it when all that has come was taken.

        ``heard``: the descriptors of what was taken since the last time. A connection is cut off at the second look
        that finds it over the limit: at the first, a message may have ended between the taking and the looking.
        """
        num_cut = 0
        suspects: set[int] = set()
        for descriptor in tuple(self._taken):
            with contextlib.ExitStack() as stack:
                connection = self._connection(stack, descriptor)
                if connection is None:
                    del self._taken[descriptor]
                    continue
                received = _bytes_received(connection)
                if descriptor in heard or received < self._taken[descriptor]:
                    self._taken[descriptor] = received
                if received - self._taken[descriptor] <= self._limit:
                    continue
                if descriptor in self._suspects:
                    connection.shutdown(sockets.SHUT_RDWR)
                    del self._taken[descriptor]
                    num_cut += 1
                else:
                    suspects.add(descriptor)
        self._suspects = suspects
        return num_cut

    def _connection(self, stack: contextlib.ExitStack, descriptor: int) -> sockets.socket | None:
        """The connection, by a descriptor of our own: ZeroMQ closes its own at any time, and others get the number."""
        try:
            connection = stack.enter_context(sockets.socket(fileno=os.dup(descriptor)))
            connection.getpeername()
            return connection if connection.getsockname()[1] == self._port else None
        except OSError:
            return None


def _bytes_received(connection: sockets.socket) -> int:
    info = connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _TCP_INFO_BYTES)
    return int.from_bytes(info[_BYTES_RECEIVED], "little")
