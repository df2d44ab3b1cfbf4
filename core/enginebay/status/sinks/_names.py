"""Addresses of a host by its name, by a deadline: the system's own look-up has bounds of its own, or none."""

from __future__ import annotations

import socket
import threading  # noqa: TID251  # a look-up cannot be called off: who must not wait for it leaves it to a thread
from concurrent.futures import Future
from typing import Any

from enginebay.status.sinks._deadline import Deadline

__all__ = ["Address", "Names"]

Address = tuple[socket.AddressFamily, socket.SocketKind, int, Any]
"""Family, kind, protocol, and what ``connect`` takes."""


class Names:
    """One sink's look-ups. Not thread-safe.

    One that is not over by its deadline goes on in its thread, which holds up nobody's end. Until it is over nobody is
    asked for that name again: what waits next waits for it.
    """

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], Future[list[Address]]] = {}

    def addresses(self, host: str, port: int, deadline: Deadline) -> list[Address]:
        """Where to connect to. Raises ``TimeoutError`` at the deadline, and what the system says of an unknown name."""
        try:
            return _look_up(host, port, socket.AI_NUMERICHOST)
        except socket.gaierror:
            pass  # a name
        key = host, port
        asked = self._asked.get(key)
        if asked is None:
            asked, name = Future(), "enginebay-status-name"
            threading.Thread(target=_answer, args=(asked, host, port), name=name, daemon=True).start()
            self._asked[key] = asked  # now that somebody answers: the system may have no more threads
        try:
            found = asked.result(deadline.left())
        except TimeoutError:
            if not asked.done():
                raise TimeoutError(f"the name {host} was not found in time") from None
            raise
        finally:
            if asked.done():  # the next one asks anew
                del self._asked[key]
        return found


def _answer(asked: Future[list[Address]], host: str, port: int) -> None:
    try:
        asked.set_result(_look_up(host, port))
    except BaseException as error:
        asked.set_exception(error)


def _look_up(host: str, port: int, flags: int = 0) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, kind, protocol, address) for family, kind, protocol, _, address in found]
