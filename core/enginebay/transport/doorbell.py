"""Doorbells: eventfds by which processes wake each other, and waiting for several of them with one ``poll``.

A bell keeps that it was rung until it is cleared. No wake-up is lost, by two rules:

- Who waits for a frame clears its bell *before* it looks at the ring; who publishes a frame rings *after*. What the
  look missed rings again.
- Who waits for room sets its word ``waits``, looks for room once more, rings the bell of every reader that is behind,
  and only then sleeps on its own bell. A reader looks at ``waits`` whenever it has made room, and after each time that
  it has cleared its bell, and rings back. x86-64 may let the first of these looks pass the reader's own store of its
  tail, so that both sides miss each other; then the second look finds ``waits`` set, for the ring came after it and
  the kernel's lock on the bell puts both in order.
"""

from __future__ import annotations

import os
import select
import threading
import time

__all__ = ["Bell", "Waiter", "clear", "new_bell", "ring", "seconds_left"]


def new_bell() -> int:
    """A new eventfd, closed on exec, that never blocks."""
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def ring(bell: int) -> None:
    """Wake who waits for ``bell``, now or later."""
    try:  # noqa: SIM105  # suppress() costs more than the system call
        os.eventfd_write(bell, 1)
    except BlockingIOError:  # its counter is full: it was rung and nobody has heard it yet
        pass


def clear(bell: int) -> None:
    """Forget the rings so far."""
    try:  # noqa: SIM105  # suppress() costs more than the system call
        os.eventfd_read(bell)
    except BlockingIOError:  # not rung
        pass


def seconds_left(deadline: float) -> float:
    """Until ``deadline`` (monotonic seconds), none when it has passed; 11 days for all that is later.

    A wait counts milliseconds in 32 bits, and refuses what does not fit.
    """
    return min(max(0.0, deadline - time.monotonic()), 1e6)


class Bell:
    """A bell within one process: any thread rings it, one waits for it by its number.

    Rung after ``close`` it does nothing: its number may be another descriptor's by then, which eight bytes would spoil.
    """

    def __init__(self) -> None:
        self._fd = new_bell()
        self._lock = threading.RLock()  # the garbage collector may ring from within this very thread

    def fileno(self) -> int:
        """Its number, readable once it was rung; -1 when it is closed."""
        return self._fd

    def ring(self) -> None:
        """Wake who waits, now or later."""
        with self._lock:
            if self._fd >= 0:
                ring(self._fd)

    def clear(self) -> None:
        """Forget the rings so far."""
        with self._lock:
            if self._fd >= 0:
                clear(self._fd)

    def close(self) -> None:
        """Give the number back. Idempotent."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)


class Waiter:
    """Waits until one bell rings, or one of the watched descriptors shows anything. Used by one thread at a time."""

    def __init__(self, bell: int) -> None:
        self._bell = bell
        self._poll = select.poll()
        self._poll.register(bell, select.POLLIN)

    def watch(self, fd: int) -> None:
        """Also return when ``fd`` is readable, or its other end is gone."""
        self._poll.register(fd, select.POLLIN)

    def wait(self, deadline: float | None) -> list[tuple[int, int]]:
        """What is ready, the bell cleared; empty when ``deadline`` (monotonic seconds) has passed."""
        ready = self._poll.poll(None if deadline is None else seconds_left(deadline) * 1e3)
        if ready:
            clear(self._bell)
        return ready
