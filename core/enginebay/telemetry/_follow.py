"""Follows a trace file while it is written."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from pathlib import Path
from typing import BinaryIO, Final

from enginebay.telemetry._read import SpanRecord, decode

_MOST_BYTES: Final = 4 << 20
"""Read at once, so that a large file is not held in memory, and what is shown moves on while it is read."""

_KNOWN: Final = 100_000
"""Ids that are remembered, to tell a span that comes twice."""


class Tail:
    """What is new in a trace file, line by line; a file that is emptied or replaced is read from its begin again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._identity = (0, 0)
        self._rest = b""
        self._known: set[tuple[str, str]] = set()
        self._order: deque[tuple[str, str]] = deque()
        self.damaged = 0
        """Lines so far that were none of OTLP JSON."""

    def read(self) -> tuple[list[SpanRecord], bool]:
        """The spans of the next lines that are whole, and whether there may be more at once.

        No file, or none that can be read at the moment, is none with anything new in it.
        """
        self._look()
        if self._file is None:
            return [], False
        try:
            read = self._file.read(_MOST_BYTES)
        except OSError:
            return [], False
        *lines, self._rest = (self._rest + read).split(b"\n")
        spans: list[SpanRecord] = []
        for line in lines:
            try:
                spans.extend(decode(line))
            except (ValueError, RecursionError):
                self.damaged += 1
        return [span for span in spans if self._is_new(span)], len(read) == _MOST_BYTES

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _look(self) -> None:
        """Open the file, anew if it is another one by now or was emptied."""
        try:
            about = os.stat(self._path)
        except OSError:
            return  # removed: what was open is read to its end
        if self._file is not None:
            if self._identity == (about.st_dev, about.st_ino) and about.st_size >= self._file.tell():
                return
            self.close()
        with contextlib.suppress(OSError):
            self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115  # closed by close
            about = os.fstat(self._file.fileno())
        self._identity, self._rest = (about.st_dev, about.st_ino), b""

    def _is_new(self, span: SpanRecord) -> bool:
        key = (span.trace_id, span.span_id)
        if key in self._known:
            return False
        self._known.add(key)
        self._order.append(key)
        if len(self._order) > _KNOWN:
            self._known.discard(self._order.popleft())
        return True
