"""What the workers print: read line by line, the last lines kept for errors, all of it passed on to our stderr."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from enginebay.runtime import Runtime, Thread

__all__ = ["KEPT_LINES", "LogReader", "Printer"]

KEPT_LINES: Final = 20
_OLD: Final = 5.0
_MAX_LINE: Final = 8192
_PIECE: Final = 1 << 16
_PIECES_AT_LAST: Final = 256
_MAX_WAITING: Final = 2000
_STACK: Final = re.compile(
    r'(Current thread|Thread) 0x[0-9a-f]+|  File "|  <no Python frame>|  \.\.\.$|Extension modules:'
)


class Printer:
    """Writes lines to stderr in a thread of its own: whoever reads our stderr slowly must not hold up the replies.

    At most ``_MAX_WAITING`` lines wait; what comes on top is dropped and counted.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._runtime = runtime
        self._name = name
        self._waiting: deque[str] = deque()
        self._changed = threading.Condition()
        self._dropped = 0
        self._is_closing = False
        self._thread: Thread | None = None

    def put(self, line: str) -> None:
        """Print this line, some time soon; returns at once."""
        with self._changed:
            if len(self._waiting) >= _MAX_WAITING:
                self._dropped += 1
                return
            self._waiting.append(line)
            if self._thread is None:
                self._thread = self._runtime.spawner.thread(self._name, self._run)
            self._changed.notify()

    def close(self, seconds: float) -> None:
        """Let the thread end once everything is printed; wait for that for so many seconds."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                lines = list(self._waiting)
                self._waiting.clear()
                dropped, self._dropped = self._dropped, 0
            if dropped:
                lines.append(f"({dropped} more lines of workers are not shown: stderr was too slow)")
            _write("".join(f"{line}\n" for line in lines))


class LogReader:
    """One worker's stdout and stderr, read from a pipe without ever waiting."""

    def __init__(self, descriptor: int, rank: int, printer: Printer, now: Callable[[], float]) -> None:
        """``now``: seconds, monotonic."""
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._prefix = f"[rank {rank}] "
        self._printer, self._now = printer, now
        self._rest = b""
        self._kept: deque[tuple[float, str]] = deque(maxlen=KEPT_LINES)
        self._stacks: list[str] | None = None
        self._in_stack = False
        self.num_stack_lines = 0

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines, oldest first; nothing in them can steer a terminal. One that is not of the last seconds
        says so: it may have little to do with what it is told for."""
        now = self._now()
        return tuple(f"({now - at:.0f} s before) {text}" if now - at >= _OLD else text for at, text in self._kept)

    def read(self) -> bool:
        """Take one piece of what is there; False when nothing will come any more.

        One piece, so that a worker that prints without end does not keep the same thread from the others' replies.
        """
        piece = self._piece()
        if piece:
            self._take(piece)
        elif piece is not None:
            self._finish()
        return piece is None or bool(piece)

    def drain(self) -> None:
        """Take all that is left of a process that has ended; a descendant of it may hold the pipe open."""
        for _ in range(_PIECES_AT_LAST):
            piece = self._piece()
            if not piece:
                break
            self._take(piece)
        self._finish()

    def _piece(self) -> bytes | None:
        """What is there; empty at the end of the pipe, None when there is nothing now."""
        try:
            return os.read(self.descriptor, _PIECE)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def begin_stacks(self) -> None:
        """From now on, keep the lines that ``faulthandler`` writes apart, and do not print them."""
        self._stacks, self.num_stack_lines = [], 0

    def end_stacks(self) -> str:
        """What came of them."""
        lines, self._stacks = self._stacks or [], None
        return "\n".join(lines).strip()

    def _take(self, piece: bytes) -> None:
        *lines, rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._line(line)
        while len(rest) > _MAX_LINE:
            self._line(rest[:_MAX_LINE])
            rest = rest[_MAX_LINE:]
        self._rest = rest

    def _finish(self) -> None:
        rest, self._rest = self._rest, b""
        if rest:
            self._line(rest)

    def _line(self, raw: bytes) -> None:
        if not raw and self._stacks is None:
            return
        # of a progress bar, only what stood there last
        text = _escaped(raw.rstrip(b"\r").rpartition(b"\r")[2][:_MAX_LINE].decode("utf-8", "backslashreplace"))
        if self._stacks is not None and self._is_of_stack(text):
            self._stacks.append(text)
            self.num_stack_lines += 1
            return
        if text.strip():
            self._kept.append((self._now(), text))
            self._printer.put(self._prefix + text)

    def _is_of_stack(self, text: str) -> bool:
        """Whether the line is ``faulthandler``'s: its own, or an empty one between two threads."""
        if text.strip():
            self._in_stack = _STACK.match(text) is not None
        return self._in_stack


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode("ascii") for c in text)


def _write(text: str) -> None:
    """To the stderr of now. By its descriptor where it has one: a thread that is cut off within ``write`` of a text
    stream leaves that stream locked for the end of the interpreter."""
    stream = sys.stderr
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or taken away: then nobody listens
        try:
            descriptor = stream.fileno()
        except (OSError, AttributeError):
            stream.write(text)
            return
        stream.flush()
        view = memoryview(text.encode("utf-8", "backslashreplace"))
        while view:
            view = view[os.write(descriptor, view) :]
