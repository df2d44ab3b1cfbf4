"""The child's side of ``Helper``: frames of JSON in on stdin, out on stdout, one answer to each."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from enginebay.limited._limits import die_with_parent, limit_files, limit_growth

HEAD = 4
"""Bytes of a frame's length, big-endian, before it."""
_WORDS = 64 * 1024
_LAST_MOMENT = 2.0  # seconds after the parent's deadline: it is gone, or stopped

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def pack(value: object) -> bytes:
    """One frame. Lone surrogates cross as they are."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return len(body).to_bytes(HEAD, "big") + body


def unpack(body: bytes) -> Any:
    """What a frame without its head holds."""
    return json.loads(body.decode("utf-8", "surrogatepass"))


def serve(handler: Handler) -> int:
    """Answer until stdin ends. The first argument is JSON with parent (pid), memory (bytes more) and seconds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    asked = json.loads(sys.argv[1])
    die_with_parent(asked["parent"])
    limit_growth(asked["memory"])
    limit_files(_WORDS)
    _write(pack({}))
    while True:
        try:
            request = _read()
            if request is None:
                return 0
            # nobody asks for longer: this ends us where the parent cannot
            signal.setitimer(signal.ITIMER_REAL, asked["seconds"] + _LAST_MOMENT)
            answer = pack(handler(request))
        except MemoryError:
            break
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(answer)
    request = None  # what it takes is needed for these words
    _write(pack({"memory": True}))
    return 0


def _read() -> dict[str, Any] | None:
    head = _exactly(HEAD)
    body = _exactly(int.from_bytes(head, "big")) if head else b""
    return unpack(body) if body else None


def _exactly(count: int) -> bytes:
    """``count`` bytes, or none at the end of the stream."""
    pieces, left = [], count
    while left:
        piece = os.read(0, min(left, 1 << 20))
        if not piece:
            return b""
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _write(frame: bytes) -> None:
    view = memoryview(frame)
    while view:
        view = view[os.write(1, view) :]
