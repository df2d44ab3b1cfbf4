"""What a worker's process is told before it is anything, and the first word that it says: typed, bounded, no pickle."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from enginebay.errors import StartFailed
from enginebay.messages import WorkerFailure, WorkerInfo

__all__ = ["MAX_FIRST_WORD", "MAX_START", "ProcessStart", "Ready", "decode_ready", "encode_start", "read_start", "say"]

MAX_START: Final = 64 * 1024 * 1024
"""Bytes of a start message: two configs as JSON, and a ticket."""

MAX_FIRST_WORD: Final = 1024 * 1024
"""Bytes of the answer; a traceback in it is cut long before."""

_PIECE: Final = 1 << 20


class ProcessStart(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one worker's process is given. It holds keys: it never stands in argv or the environment.

    ``payload`` is for ``enginebay.worker.serve``, ``ticket`` for ``WorkerEnd.attach``. ``ready`` and ``death`` are
    descriptors: the pipe on which the first word goes back, and the one that ends with the parent. ``descriptors`` are
    all that were inherited beside the standard three. ``parent`` is the pid that must be ours; ``cpus`` are those to
    run on (none: all), ``log_level`` that of ``logging``, ``spawned_ns`` the wall time of the spawn.
    """

    payload: bytes
    ticket: bytes
    parent: int
    ready: int
    death: int
    descriptors: tuple[int, ...]
    cpus: tuple[int, ...] = ()
    log_level: int = 30
    spawned_ns: int = 0


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """HELLO: the worker is connected, and has loaded nothing."""

    worker: WorkerInfo


FirstWord = Ready | WorkerFailure

_START: Final = msgspec.msgpack.Decoder(ProcessStart)
_FIRST: Final[msgspec.msgpack.Decoder[FirstWord]] = msgspec.msgpack.Decoder(FirstWord)


def encode_start(start: ProcessStart) -> bytes:
    """The start message; raises ``StartFailed`` when it is over the limit."""
    frame = msgspec.msgpack.encode(start)
    if len(frame) > MAX_START:
        raise StartFailed(f"a worker's start message has {len(frame)} bytes, and at most {MAX_START} are sent")
    return frame


def read_start(descriptor: int) -> ProcessStart:
    """Read the whole of an inherited pipe or memfd and close it; raises ``ValueError`` for what is no start message."""
    found = bytearray()
    try:
        while piece := os.read(descriptor, _PIECE):
            found += piece
            if len(found) > MAX_START:
                raise ValueError(f"the start message has over {MAX_START} bytes")
    finally:
        os.close(descriptor)
    try:
        return _START.decode(bytes(found))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"{len(found)} bytes are no start message of a worker: {error}") from None


def say(descriptor: int, word: FirstWord) -> None:
    """Write the first word and close the pipe, so that its end is the end of the word."""
    view = memoryview(msgspec.msgpack.encode(word))
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)


def decode_ready(frame: bytes) -> FirstWord:
    """The first word; raises ``ValueError`` for what is none."""
    if len(frame) > MAX_FIRST_WORD:
        raise ValueError(f"a worker's first word has over {MAX_FIRST_WORD} bytes")
    try:
        return _FIRST.decode(frame)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"{len(frame)} bytes are no first word of a worker: {error}") from None
