"""The arithmetic of the ring, against a model: what is sent comes out whole, in order, and only where it belongs."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.transport import DamagedMessage
from enginebay.transport.memory import SharedMemory
from enginebay.transport.ring import HEADER_BYTES, RingReader, RingShape, RingWriter

DATA = 4096
TAILS = 64  # the readers' tails lie behind the head, in one memory here


class _NoRoom(Exception):
    """The writer's turn is over."""


@dataclass
class _Side:
    """A reader, and what it must still get."""

    reader: RingReader
    due: deque[bytes] = field(default_factory=deque)

    def take(self) -> bool:
        if not self.reader.ready():
            return False
        frame = self.reader.take()
        if frame is not None:
            assert frame == self.due.popleft()
        return True


class _World:
    """A ring with several readers in one process; who waits for room lets readers read, the slowest first."""

    def __init__(self, memory: SharedMemory, shape: RingShape, readers: int, *, patient: bool = True) -> None:
        self.shape, self.patient, self.waited = shape, patient, 0
        self.writer = RingWriter(memory, shape, 0, self._make_room)
        self.sides = [
            _Side(RingReader(memory, shape, 0, memory, TAILS + 8 * i, bit=1 << i, max_frame_bytes=1 << 20))
            for i in range(readers)
        ]

    def send(self, mask: int, prefix: bytes, body: bytes) -> None:
        for i, side in enumerate(self.sides):
            if mask >> i & 1:
                side.due.append(prefix + body)
        self.writer.send(mask, prefix, body)
        self.writer.fetch()

    def _make_room(self, slots: int) -> None:
        assert slots <= self.shape.slots
        self.waited += 1
        while True:
            low = min((side.reader.tail for side in self.sides), default=self.writer.head)
            self.writer.limit = low + self.shape.slots
            if self.writer.limit - self.writer.head >= slots:
                return
            if not self.patient:
                raise _NoRoom
            if threading.current_thread() is threading.main_thread():
                assert min(self.sides, key=lambda side: side.reader.tail).take(), "no room, and nothing to read"


@contextmanager
def _memory(shape: RingShape) -> Iterator[SharedMemory]:
    memory = SharedMemory.create("a test", shape.end, for_us=True)
    try:
        yield memory
    finally:
        memory.close()


def _bytes(size: int, seed: int) -> bytes:
    return hashlib.shake_128(b"%d" % seed).digest(size)


SHAPES = st.builds(RingShape, slots=st.integers(2, 9), slot_bytes=st.sampled_from((64, 128, 192)), data=st.just(DATA))
SEND = st.tuples(st.integers(0, 7), st.integers(0, 40), st.one_of(st.integers(0, 200), st.integers(0, 3000)))
TAKE = st.integers(0, 2)


@settings(max_examples=150)
@given(SHAPES, st.lists(st.one_of(SEND, TAKE), max_size=60))
def test_frames_come_out_whole_in_order_and_where_they_belong(  # X8
    shape: RingShape, steps: list[tuple[int, int, int] | int]
) -> None:
    with _memory(shape) as memory:
        world = _World(memory, shape, 3)
        for number, step in enumerate(steps):
            if isinstance(step, int):
                world.sides[step].take()
            else:
                mask, prefix, size = step
                world.send(mask, _bytes(min(prefix, shape.record_bytes), -number - 1), _bytes(size, number))
                head, tails = world.writer.head, [side.reader.tail for side in world.sides]
                assert all(0 <= head - tail <= shape.slots for tail in tails)
        for side in world.sides:
            while side.take():
                pass
            assert not side.due
            assert side.reader.tail == world.writer.head


@settings(max_examples=100)
@given(SHAPES, st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 12)), min_size=1, max_size=40))
def test_a_sender_that_gives_up_leaves_its_neighbours_whole(shape: RingShape, steps: list[tuple[int, int]]) -> None:
    with _memory(shape) as memory:
        world = _World(memory, shape, 1, patient=False)
        side = world.sides[0]
        for number, (size, reads) in enumerate(steps):
            for _ in range(reads):
                side.take()
            head = world.writer.head
            try:
                world.send(1, b"", _bytes(size, number))
            except _NoRoom:
                side.due.pop()
                assert size > shape.record_bytes or world.writer.head == head, "half a frame was written"
        while side.take():
            pass
        assert not side.due


class _Interrupted(Exception):
    """Stands for Ctrl-C in the middle of a copy."""


class _Shaky(RingReader):
    """Every other copy into a large frame is done, and then interrupted."""

    interrupted = 0

    def _joined(self, part: bytes, offset: int, total: int) -> bytes | None:
        frame = super()._joined(part, offset, total)
        self.interrupted += 1
        if self.interrupted % 2:
            raise _Interrupted
        return frame


def test_an_interrupt_in_the_middle_leaves_the_line_whole() -> None:
    shape = RingShape(4, 64, DATA)
    with _memory(shape) as memory:
        world = _World(memory, shape, 1)
        [side] = world.sides
        shaky = side.reader = _Shaky(memory, shape, 0, memory, TAILS, max_frame_bytes=1 << 20)
        for number, size in enumerate([10, 80, 500, 90, 40, 300, 96, 97]):
            with pytest.raises(TypeError):
                world.writer.send(1, b"a prefix", "text")  # type: ignore[arg-type]  # fails after the prefix was copied
            side.due.append(_bytes(size, number))
            sender = threading.Thread(target=world.writer.send, args=(1, b"", side.due[0]))
            sender.start()
            while side.due:
                with suppress(_Interrupted):
                    side.take()
            sender.join()
        assert shaky.interrupted > 20


def test_a_frame_fills_the_ring_to_the_last_byte() -> None:
    shape = RingShape(4, 64, DATA)
    assert shape.record_bytes == 2 * 64 - HEADER_BYTES
    with _memory(shape) as memory:
        world = _World(memory, shape, 1)
        for size in (shape.record_bytes, 0, 1, shape.record_bytes + 1, 32, 33, shape.record_bytes):
            world.send(1, b"", _bytes(size, size))
        while world.sides[0].take():
            pass
        assert not world.sides[0].due
        assert world.waited


def test_zeros_ahead_reach_as_far_as_a_record_like_the_last_and_no_further() -> None:
    shape = RingShape(8, 64, DATA)
    with _memory(shape) as memory:
        world = _World(memory, shape, 1)
        writer, [side] = world.writer, world.sides
        for _ in range(4):  # once round
            writer.send(1, b"", b"\xff" * (128 - HEADER_BYTES))
        writer.fetch()
        assert memory.bytes[DATA] == 1, "what is unread is left alone"
        side.reader.take()
        writer.send(1, b"", b"\xff")
        assert memory.bytes[DATA + 64 : DATA + 128] == b"\xff" * 64
        writer.fetch()
        assert memory.bytes[DATA + 64 : DATA + 64 + HEADER_BYTES + 1] == bytes(HEADER_BYTES + 1)
        assert memory.bytes[DATA + 64 + HEADER_BYTES + 1 : DATA + 128] == b"\xff" * (63 - HEADER_BYTES)


def test_zeros_ahead_end_with_the_memory() -> None:
    shape = RingShape(5, 64, DATA)
    with _memory(shape) as memory:
        world = _World(memory, shape, 1)
        for _ in range(2):
            world.send(1, b"", b"\xff" * (128 - HEADER_BYTES))
            world.sides[0].take()
        memory.bytes[DATA : DATA + 64] = memory.bytes[shape.end - 64 : shape.end] = b"\xff" * 64
        world.writer.limit = 10
        world.writer.fetch()
        assert memory.bytes[shape.end - 64 : shape.end] == bytes(64)
        assert memory.bytes[DATA : DATA + 64] == b"\xff" * 64


@pytest.mark.parametrize(
    ("slots", "slot_bytes", "said"),
    [
        (1, 64, "a ring has at least 2 slots, not 1"),
        (2, 63, "a slot is a multiple of 64 bytes, not 63"),
        (2, 0, "a slot is a multiple of 64 bytes, not 0"),
    ],
)
def test_shapes_that_are_none(slots: int, slot_bytes: int, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        RingShape(slots, slot_bytes, DATA)


HEADERS = [
    ((2, 10, 0, 1), 1, "frame 2 follows frame 0"),
    ((1, 10, 5, 1), 1, "frame 1 goes on at byte 5 of 10, where frame 0 stood at 0 of 0"),
    (
        (1, 1 << 21, 0, 1),
        2,
        "no record can be there: 2 slots are unread of 4, and it says bytes 0 to 2097152 of a frame",
    ),
    ((1, 90, 0, 1), 1, "no record can be there: 1 slots are unread of 4, and it says bytes 0 to 90 of a frame"),
    ((1, 3, 9, 1), 1, "no record can be there: 1 slots are unread of 4, and it says bytes 9 to 3 of a frame"),
    ((1, 3, 0, 1), 5, "no record can be there: 5 slots are unread of 4, and it says bytes 0 to 3 of a frame"),
]


@pytest.mark.parametrize(("header", "head", "said"), HEADERS)
def test_what_cannot_be_there(header: tuple[int, int, int, int], head: int, said: str) -> None:
    shape = RingShape(4, 64, DATA)
    with _memory(shape) as memory:
        [side] = _World(memory, shape, 1).sides
        for i, word in enumerate(header):
            memory.words[DATA // 8 + i] = word
        memory.words[0] = head
        with pytest.raises(DamagedMessage) as caught:
            side.reader.take()
        assert str(caught.value) == said
