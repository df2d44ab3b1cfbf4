"""The engine's end of the shared rings: one ring to all workers of this host, and one back from each."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from enginebay.runtime import ChannelClosed
from enginebay.transport.beat import Beat
from enginebay.transport.codec import MAX_FRAME_BYTES, DamagedMessage, UnsendableMessage
from enginebay.transport.doorbell import Waiter, clear, ring, seconds_left
from enginebay.transport.moment import Moment
from enginebay.transport.ring import RingWriter
from enginebay.transport.shared_layout import CLOSED, HEAD, TAILS, WAITS
from enginebay.transport.shared_parts import Parts, Peer

__all__ = ["EngineEnd"]

_LOOK_SECONDS: Final = 100e-6
_CLOSE_SECONDS: Final = 5.0
"""Who sends or reads while the line is closed has been woken, and is out of it in microseconds."""


class EngineEnd:
    """The engine's half of the line to its workers on this host. Made by ``create``, given back by ``close``.

    ``send``, ``lose``, ``wake`` and ``close`` may be called from any thread; ``take_replies`` and ``look`` too, and a
    frame comes out of one of them once.
    """

    def __init__(self, parts: Parts) -> None:
        tickets, memory = parts.tickets, parts.memories[0]
        self._parts = parts
        self._words = memory.words
        self._peers = parts.peers()
        self._by_rank = {peer.rank: peer for peer in self._peers}
        self._replies_bell, self._room_bell = tickets[0].replies_bell, tickets[0].room_bell
        self._max_frame_bytes = tickets[0].max_frame_bytes
        self._slots = tickets[0].slots
        self._ring = RingWriter(memory, tickets[0].broadcast(), HEAD, self._make_room)
        self._waiter = Waiter(self._room_bell)
        self._moment = Moment(_LOOK_SECONDS, processors=1 + len(tickets))
        self._deadline: float | None = None  # of the send that holds the lock
        self._routes: dict[tuple[int, ...] | None, tuple[int, tuple[int, ...]]] = {}
        self._lost: dict[int, str] = {}
        self._closed = False
        self._sending, self._reading, self._bells = threading.Lock(), threading.Lock(), threading.Lock()

    @classmethod
    def create(
        cls,
        ranks: Sequence[int],
        *,
        slots: int = 1024,
        slot_bytes: int = 1024,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> EngineEnd:
        """Take the memories and bells for ``ranks``; ``slots`` of ``slot_bytes`` in each ring.

        Raises ``OutOfMemory`` when they cannot be had, ``CapabilityError`` where shared rings do not work (another
        processor than x86-64, over 64 ranks).
        """
        return cls(Parts.take(ranks, slots=slots, slot_bytes=slot_bytes, max_frame_bytes=max_frame_bytes))

    def ticket(self, rank: int) -> tuple[bytes, tuple[int, ...]]:
        """For the start message of ``rank``, and the descriptors that it must inherit under the same numbers."""
        ticket = self._by_rank[rank].ticket
        return ticket.encode(), ticket.fds

    def send(
        self, frame: bytes, ranks: tuple[int, ...] | None = None, deadline: float | None = None, *, head: bytes = b""
    ) -> None:
        """Send one frame to ``ranks`` (None: all), waiting for room until ``deadline`` (monotonic seconds).

        What arrives is ``head`` with ``frame`` behind it, put together in the ring alone.
        A lost rank is left out, and holds up nobody. Raises ``UnsendableMessage`` over the limit, ``TimeoutError``
        when there is no room in time (no rank gets the frame then), ``ChannelClosed`` when this end is closed.
        """
        if len(head) + len(frame) > self._max_frame_bytes:
            raise UnsendableMessage(
                f"a frame of {len(head) + len(frame):,} bytes does not cross: at most {self._max_frame_bytes:,} do"
            )
        mask, bells = self._routes.get(ranks) or self._route(ranks)
        if not (self._sending.acquire(blocking=False) or self._sending.acquire(timeout=_seconds(deadline))):
            raise TimeoutError("the ring to the workers was busy until the deadline")
        try:
            if self._closed:
                raise ChannelClosed("the line to the workers is closed")
            self._deadline = deadline
            self._ring.send(mask, head, frame)
            for bell in bells:
                ring(bell)
            if self._moment.expect():
                self._ring.fetch()
        finally:
            self._sending.release()

    def fileno_of_replies(self) -> int:
        """Readable when there may be replies, or after ``wake``; valid until ``close``."""
        return self._replies_bell

    def take_replies(self) -> list[tuple[int, bytes]]:
        """The frames that have come, with the ranks that sent them; never blocks.

        A rank whose memory holds what no worker writes is lost from then on, see ``lost``. Raises ``ChannelClosed``.
        """
        with self._reading:
            if self._closed:
                raise ChannelClosed("the line to the workers is closed")
            clear(self._replies_bell)
            taken: list[tuple[int, bytes]] = []
            self._gather(taken)
            return taken

    def look(self) -> list[tuple[int, bytes]]:
        """``take_replies`` for who is about to sleep: looks once, and for a moment where something was sent that may be
        answered at once and there is a processor to look with. The bell stays as it is, and may have rung for these.
        """
        taken: list[tuple[int, bytes]] = []
        with self._reading:
            if self._closed:
                raise ChannelClosed("the line to the workers is closed")
            if self._is_there() or self._moment.look(self._is_there):
                self._gather(taken)
        return taken

    def heartbeat(self, rank: int) -> Beat:
        """What ``rank`` said last; never blocks, wherever the collector of garbage may ask."""
        peer = self._by_rank[rank]
        try:
            return peer.beats.read()
        except ValueError:  # given back
            return Beat()

    def lose(self, rank: int, why: str = "lost") -> None:
        """Wait for ``rank`` no more, neither for room nor for replies; who waits for it now goes on. Idempotent."""
        if rank in self._by_rank:
            self._lost.setdefault(rank, why)
            self._ring_bell(self._room_bell)

    @property
    def lost(self) -> dict[int, str]:
        """The ranks that are waited for no more, and why."""
        return dict(self._lost)

    def wake(self) -> None:
        """Make ``fileno_of_replies`` readable."""
        self._ring_bell(self._replies_bell)

    def close(self) -> None:
        """Tell the workers, wake whoever waits, and give everything back. Idempotent.

        Whoever polls ``fileno_of_replies`` must have stopped, or its number may be another descriptor's.
        """
        with self._bells:
            if self._closed:
                return
            self._closed = True
            self._words[CLOSED] = 1
            for bell in self._parts.bells:
                ring(bell)
        locks = (self._sending, self._reading, self._bells)
        held = [lock for lock in locks if lock.acquire(timeout=_CLOSE_SECONDS)]
        try:
            if len(held) == len(locks):  # else somebody is still at it, and the end of the process gives it back
                self._parts.release()
        finally:
            for lock in held:
                lock.release()

    def _is_there(self) -> bool:
        """Whether any rank has sent something. As short as can be: it is what a moment does over and over."""
        for peer in self._peers:  # noqa: SIM110  # making a generator costs more than the look
            if peer.words[HEAD] != peer.replies.tail and peer.rank not in self._lost:
                return True
        return False

    def _gather(self, taken: list[tuple[int, bytes]]) -> None:
        """Add the frames that are there."""
        for peer in self._peers:
            if peer.words[HEAD] != peer.replies.tail and peer.rank not in self._lost:
                self._take(peer, taken)
            if peer.words[WAITS]:
                ring(peer.bell)

    def _take(self, peer: Peer, taken: list[tuple[int, bytes]]) -> None:
        """Add what one rank has sent, which is something."""
        replies, most = peer.replies, peer.replies.tail + self._slots
        try:
            while replies.tail < most:
                frame = replies.take()
                if frame is not None:
                    taken.append((peer.rank, frame))
                if not replies.ready():
                    return
        except DamagedMessage as error:
            self._lost.setdefault(peer.rank, f"its reply ring is damaged: {error}")
            self._ring_bell(self._room_bell)
            return
        ring(self._replies_bell)  # a worker that writes on and on does not keep us

    def _route(self, ranks: tuple[int, ...] | None) -> tuple[int, tuple[int, ...]]:
        peers = self._peers if ranks is None else [self._by_rank[rank] for rank in sorted(set(ranks))]
        route = sum(peer.bit for peer in peers), tuple(peer.bell for peer in peers)
        self._routes[ranks] = route
        return route

    def _make_room(self, slots: int) -> None:
        """Wait, in the thread that sends, until every reader has made room for so many slots."""
        writer = self._ring
        if self._room() >= slots:
            return
        self._words[WAITS] = 1
        try:
            while True:
                if self._closed:
                    raise ChannelClosed("the line to the workers was closed while a frame waited for room")
                if self._room() >= slots:
                    return
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    raise TimeoutError(f"no room in the ring: {self._behind()} did not read until the deadline")
                for peer in self._peers:  # who was not addressed sleeps on frames that it only has to step over
                    if peer.tail < writer.head and peer.rank not in self._lost:
                        ring(peer.bell)
                self._waiter.wait(self._deadline)
        finally:
            self._words[WAITS] = 0

    def _room(self) -> int:
        """Free slots, for the slowest of the readers that are there."""
        head = low = self._ring.head
        for peer in self._peers:
            if peer.rank in self._lost or peer.words[CLOSED]:
                continue
            tail = peer.words[TAILS]
            if not peer.tail <= tail <= head:
                self._lost.setdefault(peer.rank, f"it says that it has read {tail} slots of {head}")
                ring(self._replies_bell)  # whoever listens there looks at ``lost`` too
                continue
            peer.tail = tail
            low = min(low, tail)
        self._ring.limit = low + self._slots
        return self._ring.limit - head

    def _behind(self) -> str:
        slow = [str(p.rank) for p in self._peers if p.tail < self._ring.head and p.rank not in self._lost]
        return f"rank {', '.join(slow)}" if len(slow) == 1 else f"ranks {', '.join(slow)}"

    def _ring_bell(self, bell: int) -> None:
        with self._bells:
            if not self._closed:
                ring(bell)


def _seconds(deadline: float | None) -> float:
    """Until then, as a lock counts them."""
    return -1.0 if deadline is None else seconds_left(deadline)
