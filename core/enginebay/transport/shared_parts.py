"""What an engine's end is made of: the memories and doorbells of all its ranks, taken together or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from enginebay.errors import CapabilityError, OutOfMemory
from enginebay.transport.codec import REPLY_HEAD_BYTES
from enginebay.transport.doorbell import new_bell
from enginebay.transport.memory import SharedMemory, check_machine
from enginebay.transport.ring import RingReader
from enginebay.transport.shared_beat import BeatReader
from enginebay.transport.shared_layout import (
    HEAD,
    LINE_WORDS,
    MAX_RANKS,
    TAILS,
    Ticket,
    data_of_engine,
    data_of_worker,
)

__all__ = ["Parts", "Peer"]


class Peer:
    """What the engine has of one worker. Everything in ``words`` is the worker's word: checked, never trusted."""

    def __init__(self, ticket: Ticket, memory: SharedMemory, engine_memory: SharedMemory) -> None:
        self.rank, self.bit, self.bell = ticket.rank, 1 << ticket.index, ticket.own_bell
        self.ticket, self.words = ticket, memory.words
        self.replies = RingReader(
            memory,
            ticket.replies(),
            HEAD,
            engine_memory,
            TAILS + ticket.index * LINE_WORDS,
            max_frame_bytes=ticket.max_frame_bytes + REPLY_HEAD_BYTES,
        )
        self.beats = BeatReader(memory)
        self.tail = 0
        """Its tail in the broadcast ring, as last seen."""


@dataclass
class Parts:
    """Memories (the engine's first, then one per rank) and bells; ``release`` gives all of them back.

    None of them is descriptor 0, 1 or 2: a child gets its own under these numbers, and what prints without asking would
    print into a ring. Where the program runs with one of those closed, ``standard`` keeps it taken meanwhile, also
    from whoever makes descriptors for the same child.
    """

    standard: list[int] = field(default_factory=list)
    memories: list[SharedMemory] = field(default_factory=list)
    bells: list[int] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)

    @classmethod
    def take(cls, ranks: Sequence[int], *, slots: int, slot_bytes: int, max_frame_bytes: int) -> Parts:
        """All that ``EngineEnd.create`` needs; raises what it documents, with nothing taken."""
        check_machine()
        if not 1 <= len(set(ranks)) == len(ranks) <= MAX_RANKS:
            raise CapabilityError(f"one shared ring serves 1 to {MAX_RANKS} ranks, each once; asked for {list(ranks)}")
        parts = cls()
        try:
            parts._take(ranks, slots, slot_bytes, max_frame_bytes)
        except BaseException as error:
            parts.release()
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise OutOfMemory(
                    f"shared rings for {len(ranks)} ranks need {3 + 3 * len(ranks)} descriptors and more to map them, "
                    f"and no more can be had: raise `ulimit -n`"
                ) from error
            raise
        return parts

    def _take(self, ranks: Sequence[int], slots: int, slot_bytes: int, max_frame_bytes: int) -> None:
        size = slots * slot_bytes
        while (taken := os.open(os.devnull, os.O_RDWR)) <= 2:
            self.standard.append(taken)
        os.close(taken)
        engine = self._memory("the broadcast ring", data_of_engine(len(ranks)) + size, for_us=True)
        replies_bell, room_bell = self._bell(), self._bell()
        for index, rank in enumerate(ranks):
            own = self._memory(f"rank {rank}'s replies", data_of_worker() + size, for_us=False)
            self.tickets.append(
                Ticket(
                    rank=rank,
                    index=index,
                    ranks=len(ranks),
                    slots=slots,
                    slot_bytes=slot_bytes,
                    max_frame_bytes=max_frame_bytes,
                    engine_memory=engine.fd,
                    worker_memory=own.fd,
                    own_bell=self._bell(),
                    replies_bell=replies_bell,
                    room_bell=room_bell,
                )
            )

    def peers(self) -> list[Peer]:
        """One for each rank, in the order of the tickets."""
        return [
            Peer(ticket, own, self.memories[0]) for ticket, own in zip(self.tickets, self.memories[1:], strict=True)
        ]

    def release(self) -> None:
        """Unmap the memories and close all descriptors."""
        for memory in self.memories:
            memory.close()
        for descriptor in (*self.bells, *self.standard):
            os.close(descriptor)
        self.bells.clear()
        self.standard.clear()

    def _memory(self, what: str, size: int, *, for_us: bool) -> SharedMemory:
        self.memories.append(SharedMemory.create(what, size, for_us=for_us))
        return self.memories[-1]

    def _bell(self) -> int:
        self.bells.append(new_bell())
        return self.bells[-1]
