"""Ctrl-C and SIGTERM on the command line: the first unwinds and gives everything back, a second Ctrl-C ends at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Final

__all__ = ["INTERRUPTED", "TERMINATED", "Interrupts", "Terminated", "interrupts", "leave"]

INTERRUPTED: Final = 130
TERMINATED: Final = 143


class Terminated(BaseException):
    """SIGTERM, as an exception, so that everything on the stack is given back."""


class Interrupts:
    """Counts the Ctrl-C's that nobody has dealt with yet."""

    def __init__(self) -> None:
        self._pending = 0
        self._is_quiet = False

    def install(self) -> None:
        """Take over both signals for the rest of the process."""
        self._pending, self._is_quiet = 0, False
        signal.signal(signal.SIGINT, self._interrupted)
        signal.signal(signal.SIGTERM, _terminated)

    def dealt_with(self) -> None:
        """The command goes on after a Ctrl-C (it stopped an answer, say): the next one is a first again."""
        self._pending = 0

    def quiet(self) -> None:
        """Say nothing on a Ctrl-C: an interactive command has its own words for it."""
        self._is_quiet = True

    def _interrupted(self, signum: int, frame: FrameType | None) -> None:
        self._pending += 1
        if self._pending > 1:
            os._exit(INTERRUPTED)
        if not self._is_quiet:
            os.write(2, b"\nstopping; Ctrl-C again ends at once\n")  # a signal handler may not use buffered streams
        raise KeyboardInterrupt


def _terminated(signum: int, frame: FrameType | None) -> None:
    raise Terminated


interrupts: Final = Interrupts()
"""The process has one set of signals."""


def leave(code: int) -> None:
    """End the process; at once when a thread of the engine is still inside a library, which an orderly end would abort.

    The interpreter's end runs under such a thread, and native code then calls ``std::terminate``.
    """
    if any(thread.name.startswith("enginebay-") for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue  # nobody reads it any more
        os._exit(code)
    if code in (INTERRUPTED, TERMINATED):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interpreter's end would make death by a signal of it
    sys.exit(code)
