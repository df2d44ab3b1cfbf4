"""Where everything lies in the two kinds of shared memory, and the ticket that tells a worker.

::

              the engine's memory                  one worker's memory
    line 0    head of the broadcast ring           head of its reply ring
    line 1    closed                               closed
    line 2    it waits for room                    it waits for room
    line 3    tail in the first reply ring         tail in the broadcast ring
    line 4…   tails in the other reply rings       its heartbeat
    next page the broadcast ring's slots           the reply ring's slots

A line is 64 bytes, what processors trade with each other; each counter has one of its own. Each memory is written by
its owner alone.
"""

from __future__ import annotations

import mmap
from typing import Annotated, Final

import msgspec

from enginebay.transport.codec import DamagedMessage
from enginebay.transport.ring import RingShape

__all__ = ["BEAT", "CLOSED", "HEAD", "MAX_RANKS", "TAILS", "WAITS", "Ticket", "data_of_engine", "data_of_worker"]

LINE_WORDS: Final = 8
HEAD: Final = 0
CLOSED: Final = 1 * LINE_WORDS
WAITS: Final = 2 * LINE_WORDS
TAILS: Final = 3 * LINE_WORDS
BEAT: Final = 4 * LINE_WORDS

MAX_RANKS: Final = 64
"""Of one ring: a frame says in one word which of them it is for."""

_BEAT_LINES: Final = 3


def data_of_engine(ranks: int) -> int:
    """Where the slots begin in the engine's memory."""
    return _pages(8 * (TAILS + ranks * LINE_WORDS))


def data_of_worker() -> int:
    """Where the slots begin in a worker's memory."""
    return _pages(8 * (BEAT + _BEAT_LINES * LINE_WORDS))


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


_Fd = Annotated[int, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to attach. ``index`` is its place among the ``ranks`` of this ring, not its rank."""

    rank: int
    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
    ranks: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    slots: _Count
    slot_bytes: _Count
    max_frame_bytes: _Count
    engine_memory: _Fd
    worker_memory: _Fd
    own_bell: _Fd
    replies_bell: _Fd
    room_bell: _Fd

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors that the worker inherits, under the same numbers."""
        return (self.engine_memory, self.worker_memory, self.own_bell, self.replies_bell, self.room_bell)

    def broadcast(self) -> RingShape:
        """The ring in the engine's memory."""
        return RingShape(self.slots, self.slot_bytes, data_of_engine(self.ranks))

    def replies(self) -> RingShape:
        """The ring in this worker's memory."""
        return RingShape(self.slots, self.slot_bytes, data_of_worker())

    def encode(self) -> bytes:
        """For the start message."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Ticket:
        """Raises ``DamagedMessage``."""
        try:
            ticket = msgspec.msgpack.decode(data, type=cls)
            ticket.broadcast()  # the arithmetic holds
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise DamagedMessage(f"{len(data)} bytes are not a ticket of shared rings: {error}") from None
        return ticket
