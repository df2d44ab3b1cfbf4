"""Heartbeats in shared memory: the worker says what it enters, and the engine reads it without asking.

A counter is odd while the words behind it change (a seqlock): a reader that meets an odd number, or another one after
than before, looks again, so that it never puts together halves of two beats.
"""

from __future__ import annotations

import struct
import time
from typing import Final

from enginebay.transport.beat import Beat
from enginebay.transport.memory import SharedMemory
from enginebay.transport.shared_layout import BEAT

__all__ = ["BeatReader", "BeatWriter"]

_BODY: Final = struct.Struct("=q80s")  # when, what was said
_AT: Final = 8 * (BEAT + 1)  # the counter is the first word
_TRIES: Final = 100


class BeatWriter:
    """The worker's side, for one thread at a time."""

    def __init__(self, memory: SharedMemory) -> None:
        self._bytes, self._words = memory.bytes, memory.words
        self._count = 0

    def beat(self, said: str) -> None:
        """Store what ``WorkerChannel.heartbeat`` was given, cut after 80 bytes, and when.

        The clock is ``CLOCK_MONOTONIC``, one for all processes of a host.
        """
        self._count += 2
        self._words[BEAT] = self._count - 1
        _BODY.pack_into(self._bytes, _AT, time.monotonic_ns(), said.encode("utf-8", "replace"))
        self._words[BEAT] = self._count


class BeatReader:
    """The engine's side: what cannot be read whole (a worker stopped in the middle) leaves the beat before."""

    def __init__(self, memory: SharedMemory) -> None:
        self._bytes, self._words = memory.bytes, memory.words
        self._newest = 0, Beat()  # one reference: any thread reads and replaces it whole

    def read(self) -> Beat:
        """The newest whole beat. Thread-safe; raises ``ValueError`` once the memory has been given back."""
        known, beat = self._newest
        for _ in range(_TRIES):
            count = self._words[BEAT]
            if count == known:
                break
            if count % 2:
                continue
            at_ns, said = _BODY.unpack_from(self._bytes, _AT)
            if self._words[BEAT] == count:
                beat = Beat.said(_printable(said), at_ns)
                self._newest = count, beat
                break
        return beat


def _printable(said: bytes) -> str:
    text = said.partition(b"\0")[0].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in text)
