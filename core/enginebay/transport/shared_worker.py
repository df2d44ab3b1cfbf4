"""A worker's end of the shared rings: the ``WorkerChannel`` of executors whose workers are on the engine's host."""

from __future__ import annotations

import os
from typing import Final

from enginebay.runtime import ChannelClosed
from enginebay.transport.codec import REPLY_HEAD, DamagedMessage, UnsendableMessage
from enginebay.transport.doorbell import Waiter, ring
from enginebay.transport.memory import SharedMemory, check_machine
from enginebay.transport.moment import Moment
from enginebay.transport.ring import RingReader, RingWriter
from enginebay.transport.shared_beat import BeatWriter
from enginebay.transport.shared_layout import CLOSED, HEAD, LINE_WORDS, TAILS, WAITS, Ticket

__all__ = ["WorkerEnd"]

_LOOK_SECONDS: Final = 100e-6


class WorkerEnd:
    """One worker's half of the line: a ``WorkerChannel``, used by one thread. Made by ``attach``."""

    def __init__(self, ticket: Ticket, engine: SharedMemory, own: SharedMemory) -> None:
        self.rank = ticket.rank
        self._ticket, self._engine, self._own = ticket, engine, own
        self._engine_words, self._own_words = engine.words, own.words
        self._calls = RingReader(
            engine,
            ticket.broadcast(),
            HEAD,
            own,
            TAILS,
            bit=1 << ticket.index,
            max_frame_bytes=ticket.max_frame_bytes,
        )
        self._replies = RingWriter(own, ticket.replies(), HEAD, self._make_room)
        self._beats = BeatWriter(own)
        self._waiter = Waiter(ticket.own_bell)
        self._engine_gone = self._closed = False
        self._moment = Moment(_LOOK_SECONDS, processors=1 + ticket.ranks)

    @classmethod
    def attach(cls, ticket: bytes) -> WorkerEnd:
        """Join the line, with the descriptors that were inherited. Raises ``DamagedMessage``."""
        told = Ticket.decode(ticket)
        check_machine()
        memories: list[SharedMemory] = []
        try:
            for fd in told.fds:
                os.set_inheritable(fd, False)  # at once: what this process starts must not keep the line alive
            sizes = told.broadcast().end, told.replies().end
            memories.append(SharedMemory.attach(told.engine_memory, sizes[0], writable=False))
            memories.append(SharedMemory.attach(told.worker_memory, sizes[1], writable=True))
        except (OSError, ValueError) as error:
            for memory in memories:
                memory.close()
            raise DamagedMessage(f"the ticket of rank {told.rank} names what is not there: {error}") from error
        return cls(told, *memories)

    def watch_fd(self, fd: int) -> None:
        """Take the line for closed as soon as ``fd`` is readable, or its other end is gone: the engine's death."""
        self._waiter.watch(fd)

    def receive(self, deadline: float | None) -> bytes | None:
        """The next frame for this rank; None once the line is closed and empty.

        Raises ``TimeoutError`` past ``deadline`` (monotonic seconds; None waits), ``DamagedMessage``.
        """
        calls, words = self._calls, self._engine_words
        while True:
            closed = self._closed or self._engine_gone or words[CLOSED]
            while words[HEAD] != calls.tail:  # what was sent before the end is still read
                frame = calls.take()
                if words[WAITS]:
                    ring(self._ticket.room_bell)
                if frame is not None:
                    return frame
            if closed:
                return None
            if not self._moment.look(lambda: words[HEAD] != calls.tail):
                self._wait(deadline)

    def reply(self, generation: int, call_id: int, payload: bytes) -> None:
        """Send an encoded result back, waiting for room as long as the line is open.

        Raises ``UnsendableMessage`` over the limit, ``ChannelClosed``.
        """
        if len(payload) > self._ticket.max_frame_bytes:
            raise UnsendableMessage(
                f"a reply of {len(payload):,} bytes does not cross: at most {self._ticket.max_frame_bytes:,} do"
            )
        if self.closed():
            raise ChannelClosed("the engine has closed the line")
        self._replies.send(1, REPLY_HEAD.pack(generation, call_id), payload)
        ring(self._ticket.replies_bell)
        if self._moment.expect():
            self._replies.fetch()

    def heartbeat(self, phase: str) -> None:
        """Say what this worker enters, see ``Beat.said``."""
        if not self._closed:
            self._beats.beat(phase)

    def closed(self) -> bool:
        """Whether either side has closed the line, or the engine is gone."""
        return self._closed or self._engine_gone or bool(self._engine_words[CLOSED])

    def close(self) -> None:
        """Leave: the engine waits for this worker no more. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._own_words[CLOSED] = 1
        ring(self._ticket.room_bell)
        ring(self._ticket.replies_bell)
        self._engine.close()
        self._own.close()
        for bell in self._ticket.fds[2:]:
            os.close(bell)

    def _wait(self, deadline: float | None) -> None:
        ready = self._waiter.wait(deadline)
        if not ready:
            raise TimeoutError("no call before the deadline")
        if self._engine_words[WAITS]:  # the bell is cleared, whatever it was waited for: doorbell.py's second look
            ring(self._ticket.room_bell)
        if len(ready) > 1 or ready[0][0] != self._ticket.own_bell:
            self._engine_gone = True

    def _make_room(self, slots: int) -> None:
        writer, own = self._replies, self._own_words
        tail_word = TAILS + self._ticket.index * LINE_WORDS
        own[WAITS] = 1
        try:
            while True:
                writer.limit = self._engine_words[tail_word] + self._ticket.slots
                if writer.limit - writer.head >= slots:
                    return
                if self.closed():
                    raise ChannelClosed("the engine has closed the line while a reply waited for room")
                ring(self._ticket.replies_bell)
                self._wait(None)
        finally:
            own[WAITS] = 0
