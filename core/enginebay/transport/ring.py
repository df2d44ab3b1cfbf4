"""A ring of slots in shared memory: one writer, many readers, frames of any size, whole and in order.

The memory has slots of ``slot_bytes``; positions count slots from the start of time and are never reset, so ``head``
(the writer's) minus ``tail`` (a reader's) is what is unread. A *record* takes as many slots as it needs: a header, then
bytes that run on over slot borders and the end of the memory. A frame up to half the ring is one record; a larger one
is several records, written as room is made.

Order: the writer stores the record, then ``head``; a reader loads ``head``, then the record, copies it, then stores
``tail``; the writer loads ``tail`` before it writes there again. Each of the counters is an aligned 64-bit word. x86-64
keeps stores in order, and loads in order, and lets no load pass an older one, so nobody sees a half-written record.
``memory.check_machine`` refuses other processors.

``RingWriter.fetch`` stores zeros past ``head``, where no reader looks. It may do so where a record may be written, once
every reader's ``tail`` is past what lay there; the record comes later, by the same writer, and ``head`` after it.

Why large frames span slots, and take no second path (a socket, a memory of their own): the order with the neighbours
is then the ring's own and needs no proof across two lines; a slow reader holds up the writer by one rule; nothing is
allocated while the engine runs, so nothing can fail that did not fail at the start. It costs a frame above half the
ring that writer and readers take turns. A violating change looks like: a frame that is announced in the ring and
delivered elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from enginebay.transport.codec import DamagedMessage
from enginebay.transport.memory import SharedMemory

__all__ = ["HEADER_BYTES", "RingReader", "RingShape", "RingWriter"]

_ZEROS: Final = memoryview(bytes(128 * 1024))
"""What ``RingWriter.fetch`` stores: no more than this for one frame."""

_HEADER: Final = Struct("=4Q")
HEADER_BYTES: Final = _HEADER.size
"""Of a record: the frame's number (1, 2, …), the frame's bytes, where in it this record starts, who it is for."""


@dataclass(frozen=True, slots=True)
class RingShape:
    """The arithmetic of a ring, known alike to both ends. ``data`` is where its slots begin in the memory."""

    slots: int
    slot_bytes: int
    data: int

    def __post_init__(self) -> None:
        if self.slots < 2:
            raise ValueError(f"a ring has at least 2 slots, not {self.slots}")
        if self.slot_bytes < 64 or self.slot_bytes % 64:
            raise ValueError(f"a slot is a multiple of 64 bytes, not {self.slot_bytes}")

    @property
    def end(self) -> int:
        """Where the slots end in the memory."""
        return self.data + self.slots * self.slot_bytes

    @property
    def record_bytes(self) -> int:
        """The most that one record carries: half the ring, so that writer and readers can work at the same time."""
        return self.slots // 2 * self.slot_bytes - HEADER_BYTES


class RingWriter:
    """The writing end, for one thread at a time.

    ``limit`` is the position up to which readers are known to have made room; ``make_room(slots)`` waits until there is
    room for so many, and moves it. What that raises goes to the sender: of a frame of one record, nothing was written;
    one of several is dropped by its readers, and the next frame is whole.
    """

    def __init__(
        self, memory: SharedMemory, shape: RingShape, head_word: int, make_room: Callable[[int], None]
    ) -> None:
        self._make_room = make_room
        self.limit = shape.slots
        self._bytes, self._words, self._shape, self._head_word = memory.bytes, memory.words, shape, head_word
        self._slots, self._slot_bytes, self._data, self._end = shape.slots, shape.slot_bytes, shape.data, shape.end
        self._record_bytes = shape.record_bytes
        self.head = 0
        self.number = 0
        self._record = 0  # bytes of the newest one

    def send(self, mask: int, prefix: bytes, body: bytes) -> None:
        """Publish one frame: ``prefix``, then ``body``, for the readers whose bit is in ``mask``."""
        total = len(prefix) + len(body)
        if total <= self._record_bytes:
            self._put(total, 0, mask, prefix, body, total)
            return
        with memoryview(body) as view:
            at = self._record_bytes - len(prefix)
            self._put(total, 0, mask, prefix, view[:at], self._record_bytes)
            while at < len(body):
                part = view[at : at + self._record_bytes]
                self._put(total, len(prefix) + at, mask, b"", part, len(part))
                at += len(part)

    def _put(self, total: int, offset: int, mask: int, prefix: bytes, part: bytes | memoryview, size: int) -> None:
        """Publish one record: ``size`` bytes of the frame, from ``offset`` on."""
        head = self.head
        then = head + (size + HEADER_BYTES + self._slot_bytes - 1) // self._slot_bytes
        if then > self.limit:
            self._make_room(then - head)
        number = self.number if offset else self.number + 1
        at = self._data + head % self._slots * self._slot_bytes
        lead = _HEADER.pack(number, total, offset, mask) + prefix
        middle = at + len(lead)
        end = middle + len(part)
        if end <= self._end:
            self._bytes[at:middle] = lead
            self._bytes[middle:end] = part
        else:
            self._copy(self._copy(at, lead), part)
        # all at the end and without a call between: what interrupts the copy has written nothing
        self.number = number
        self._record = size + HEADER_BYTES
        self.head = then
        self._words[self._head_word] = then

    def fetch(self) -> None:
        """Store zeros where the next frame goes, if it is like the last record and there is room: for who has time now.

        Those cache lines are shared with the readers' processors since the last time round, and the first store to each
        waits until they have given it up. So that happens while a reader works, and not while it waits for the frame.
        """
        size = self._record
        if self.head + (size + self._slot_bytes - 1) // self._slot_bytes <= self.limit:
            at = self._data + self.head % self._slots * self._slot_bytes
            size = min(size, self._end - at, len(_ZEROS))
            self._bytes[at : at + size] = _ZEROS[:size]

    def _copy(self, at: int, part: bytes | memoryview) -> int:
        """Copy to ``at``, over the end of the memory if need be; where the next byte goes."""
        if at >= self._end:
            at -= self._end - self._data
        end, over = at + len(part), at + len(part) - self._end
        if over <= 0:
            self._bytes[at:end] = part
            return end
        view = memoryview(part)
        self._bytes[at : self._end] = view[:-over]
        self._bytes[self._data : self._data + over] = view[-over:]
        return self._data + over


class RingReader:
    """The reading end of one reader. It trusts nothing in the memory: what cannot be is ``DamagedMessage``.

    ``tail_word`` is in ``own``, the memory that this process writes. ``bit`` says which frames are for it.
    """

    def __init__(
        self,
        memory: SharedMemory,
        shape: RingShape,
        head_word: int,
        own: SharedMemory,
        tail_word: int,
        *,
        bit: int = 1,
        max_frame_bytes: int,
    ) -> None:
        self._bytes, self._words, self._head_word = memory.bytes, memory.words, head_word
        self._own, self._tail_word = own.words, tail_word
        self._slots, self._slot_bytes, self._data, self._end = shape.slots, shape.slot_bytes, shape.data, shape.end
        self._record_bytes = shape.record_bytes
        self._bit, self._max_frame_bytes = bit, max_frame_bytes
        self.tail = 0
        self._number = 0
        self._total = self._offset = 0
        self._parts = bytearray()

    def ready(self) -> bool:
        """Whether a record is there."""
        return self._words[self._head_word] != self.tail

    def take(self) -> bytes | None:
        """Take the next record, which is there: the frame that it completes, or None.

        Memory is taken as bytes arrive, never as they are announced.
        """
        tail = self.tail
        ahead = self._words[self._head_word] - tail
        at = self._data + tail % self._slots * self._slot_bytes
        number, total, offset, mask = _HEADER.unpack_from(self._bytes, at)
        size = total - offset
        if size > self._record_bytes:
            size = self._record_bytes
        used = (size + HEADER_BYTES + self._slot_bytes - 1) // self._slot_bytes
        if not (used <= ahead <= self._slots and size >= 0 and total <= self._max_frame_bytes):
            raise DamagedMessage(
                f"no record can be there: {ahead} slots are unread of {self._slots}, and it says bytes {offset} to "
                f"{total} of a frame"
            )
        if offset or number != self._number + 1:  # else it is a new one: of the one before, the sender gave up
            self._check_goes_on(number, total, offset)
        frame = None
        if mask & self._bit:
            at += HEADER_BYTES
            end = at + size
            part = self._bytes[at:end] if end <= self._end else self._wrapped(at, end)
            frame = part if size == total else self._joined(part, offset, total)
        # all at the end and without a call between: what interrupts the copy has taken nothing
        self._number, self._total, self._offset = number, total, offset + size
        self.tail = self._own[self._tail_word] = tail + used
        if frame is not None and size != total:
            self._parts = bytearray()
        return frame

    def _check_goes_on(self, number: int, total: int, offset: int) -> None:
        if not offset:
            raise DamagedMessage(f"frame {number} follows frame {self._number}")
        if (number, total, offset) != (self._number, self._total, self._offset):
            raise DamagedMessage(
                f"frame {number} goes on at byte {offset} of {total}, where frame {self._number} stood at "
                f"{self._offset} of {self._total}"
            )

    def _joined(self, part: bytes, offset: int, total: int) -> bytes | None:
        if not offset:
            self._parts = bytearray()
        self._parts[offset:] = part
        return bytes(self._parts) if len(self._parts) == total else None

    def _wrapped(self, start: int, end: int) -> bytes:
        over = end - self._end
        return self._bytes[start : self._end] + self._bytes[self._data : self._data + over]
