"""Shared rings against a worker that writes whatever it likes into its memory: the engine goes on with the others."""

from __future__ import annotations

import random
from functools import cache

import msgspec
import pytest

from enginebay.transport import DamagedMessage, TransportError, decode_reply, decode_result
from enginebay.transport.arrays import Array, decode_arrays, encode_arrays
from enginebay.transport.memory import SharedMemory
from enginebay.transport.ring import RingReader, RingShape, RingWriter
from enginebay.transport.shared import EngineEnd, WorkerEnd
from enginebay.transport.shared_layout import BEAT, CLOSED, HEAD, TAILS, WAITS, Ticket
from support.fuzzing import SHORT, SOAK, Tally, fuzz, mutate_bytes
from support.rings import attach_here

WORDS = (0, 1, 2, 7, 8, 9, 100, 2**31, 2**32 - 1, 2**60, 2**63 - 1, 2**63, 2**64 - 1)
SHAPE = RingShape(8, 64, 4096)


class _Chunk(msgspec.Struct):
    name: str = ""
    at: int = 0


FRAME = encode_arrays(
    _Chunk("w", 3),
    [Array("float32", (2, 3), memoryview(bytes(range(24)))), Array("bfloat16", (5,), memoryview(bytes(10)))],
)


def _arrays(chance: random.Random) -> str:
    frame = FRAME
    if chance.random() > 0.05:
        frame = mutate_bytes(chance, frame, None if chance.random() < 0.3 else 64)
    message, arrays = decode_arrays(frame, _Chunk)
    assert encode_arrays(message, arrays)
    for array in arrays:
        if not array.dtype.startswith(("bf", "float8")):
            array.as_numpy().sum()
    return f"{len(arrays)} arrays"


@cache
def _memory() -> SharedMemory:
    return SharedMemory.create("a fuzz", SHAPE.end, for_us=True)


def _ring(chance: random.Random) -> str:
    """A reader of a ring that was written well, and then not only."""
    memory = _memory()
    writer = RingWriter(memory, SHAPE, 0, lambda slots: None)
    reader = RingReader(memory, SHAPE, 0, memory, 64, max_frame_bytes=2000)
    taken = 0
    for _ in range(chance.randrange(1, 12)):
        if chance.random() < 0.6:
            writer.send(1, b"", bytes(chance.randrange(300)))
        else:
            _scribble(chance, memory, (HEAD,), SHAPE.data)
        while reader.ready():
            frame = reader.take()
            taken += frame is not None
            assert len(frame or b"") <= 2000
    return f"{min(taken, 2)} frames"


def _scribble(chance: random.Random, memory: SharedMemory, words: tuple[int, ...], data: int) -> None:
    act = chance.random()
    if act < 0.3:
        memory.words[chance.choice(words)] = chance.choice(WORDS)
    elif act < 0.8:
        memory.words[(data + chance.randrange(8) * 64) // 8 + chance.randrange(4)] = chance.choice(WORDS)
    else:
        at = chance.randrange(data, memory.size - 100)
        memory.bytes[at : at + 100] = chance.randbytes(100)


def _line(chance: random.Random) -> str:
    """The whole line: one worker is hostile, the other is not and must be served all the same."""
    end = EngineEnd.create([0, 1], slots=8, slot_bytes=64, max_frame_bytes=4000)
    hostile, other = attach_here(end, 0), attach_here(end, 1)
    try:
        return _talk(chance, end, hostile, other)
    finally:
        hostile.close()
        other.close()
        end.close()


def _talk(chance: random.Random, end: EngineEnd, hostile: WorkerEnd, other: WorkerEnd) -> str:
    answered = sent = 0
    for _ in range(chance.randrange(1, 10)):
        if chance.random() < 0.5:
            _scribble(chance, hostile._own, (HEAD, CLOSED, WAITS, TAILS, BEAT, BEAT + 1), 4096)
        elif chance.random() < 0.5 and 0 not in end.lost:  # nobody reads the replies of a lost rank
            hostile.reply(chance.choice((-1, 0, 7)), 1, chance.randbytes(chance.randrange(100)))
        end.wake()
        try:
            end.send(b"call %d" % sent, None, 0.0)
        except TimeoutError:  # it says that it has read nothing: a slow one looks the same
            end.lose(0)
            end.send(b"call %d" % sent, None, 0.0)
        assert other.receive(0.0) == b"call %d" % sent
        other.reply(1, sent, b"")
        sent += 1
        for rank, frame in end.take_replies():
            if rank == 1:
                assert decode_reply(frame)[1] == answered
                answered += 1
            else:
                _read(frame)
        end.heartbeat(0).phase.encode("ascii", "replace")
    assert answered == sent
    if 0 in end.lost and "damaged" in end.lost[0]:
        raise DamagedMessage(end.lost[0])
    return "lost" if end.lost else "served"


def _read(frame: bytes) -> None:
    try:
        decode_result(decode_reply(frame)[2])
    except TransportError:
        return


def _ticket(chance: random.Random) -> str:
    ticket = Ticket(
        rank=1,
        index=0,
        ranks=2,
        slots=8,
        slot_bytes=64,
        max_frame_bytes=4000,
        engine_memory=3,
        worker_memory=4,
        own_bell=5,
        replies_bell=6,
        room_bell=7,
    )
    data = ticket.encode()
    Ticket.decode(data if chance.random() < 0.1 else mutate_bytes(chance, data))
    return "ticket"


CASES = {"arrays": _arrays, "ring": _ring, "line": _line, "ticket": _ticket}
DEPTHS = {"frame": "frame", "record": "record", "array": "array", "bytes": "bytes"}


def _run(kind: str, count: int, seed: int) -> Tally:
    return fuzz(kind, CASES[kind], count=count, seed=seed, errors=(TransportError,), depths=DEPTHS)


@pytest.mark.parametrize("kind", CASES)
def test_rings(kind: str) -> None:
    _run(kind, SHORT // 2, 1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", CASES)
def test_many_rings(kind: str) -> None:
    _run(kind, SOAK, 2)
