"""Arrays beside messages: equal, bounded, and valid for as long as somebody holds them."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.transport import DamagedMessage, UnsendableMessage
from enginebay.transport.arrays import DTYPES, Array, decode_arrays, encode_arrays
from enginebay.transport.shared import EngineEnd
from support.rings import attach_here

NUMPY = [name for name in DTYPES if not name.startswith(("bfloat", "float8"))]


class Chunk(msgspec.Struct):
    """A message of a test."""

    name: str = ""
    at: int = 0
    data: bytes = b""
    anything: Any = None


@st.composite
def _arrays(draw: st.DrawFn) -> Array:
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    size = DTYPES[dtype]
    for n in shape:
        size *= n
    return Array(dtype, shape, memoryview(draw(st.binary(min_size=size, max_size=size))))


@settings(max_examples=100)
@given(st.builds(Chunk, name=st.text(), at=st.integers(-(2**63), 2**63), data=st.binary()), st.lists(_arrays()))
def test_what_goes_in_comes_out(chunk: Chunk, arrays: list[Array]) -> None:  # X9
    frame = encode_arrays(chunk, arrays)
    message, got = decode_arrays(frame, Chunk)
    assert message == chunk
    assert [(a.dtype, a.shape, bytes(a.data)) for a in got] == [(a.dtype, a.shape, bytes(a.data)) for a in arrays]
    starts = [memoryview(frame)[i : i + 1] for i in range(0, len(frame), 64)]
    assert all(any(np.shares_memory(np.frombuffer(a.data, "u1")[:1], s) for s in starts) for a in got if a.data.nbytes)


@pytest.mark.parametrize("dtype", NUMPY)
def test_numpy_arrays(dtype: str) -> None:  # X9
    whole = (np.arange(24).reshape(2, 3, 4) % 2).astype(dtype)
    given_ = [whole, whole[:, ::2].T, whole[:0], whole[0, 0, 0].reshape(())]
    _, got = decode_arrays(encode_arrays(Chunk(), [Array.of(a) for a in given_]), Chunk)
    for a, b in zip(given_, got, strict=True):
        assert b.as_numpy().dtype == a.dtype
        assert b.as_numpy().shape == a.shape
        assert np.array_equal(a, b.as_numpy())
        assert not b.as_numpy().flags.writeable


def test_arrays_stay_valid_when_the_ring_has_gone_round() -> None:  # X9
    end = EngineEnd.create([0], slots=8, slot_bytes=1024)
    worker = attach_here(end, 0)
    held = []
    for number in range(50):
        end.send(encode_arrays(Chunk(at=number), [Array.of(np.full(300, number, np.float32))]))
        frame = worker.receive(None)
        assert frame is not None
        held.append(decode_arrays(frame, Chunk))
    worker.close()
    end.close()
    gc.collect()
    for number, (chunk, [array]) in enumerate(held):
        assert chunk.at == number
        assert np.array_equal(array.as_numpy(), np.full(300, number, np.float32))


def test_what_numpy_has_no_name_for_is_left_as_bytes() -> None:
    _, [got] = decode_arrays(encode_arrays(Chunk(), [Array("bfloat16", (2,), memoryview(b"abcd"))]), Chunk)
    assert (got.dtype, got.shape, bytes(got.data)) == ("bfloat16", (2,), b"abcd")
    with pytest.raises(TypeError, match="bfloat16"):
        got.as_numpy()


def test_an_array_of_objects_does_not_cross() -> None:  # X15
    with pytest.raises(UnsendableMessage, match=r"^an array of dtype\('O'\) does not cross; these do: bool, int8,"):
        Array.of(np.array([threading.Lock()]))
    with pytest.raises(UnsendableMessage, match=r"^an array of dtype\('>i4'\) does not cross"):
        Array.of(np.zeros(2, ">i4"))


BAD = [
    (Array("object", (1,), memoryview(bytes(8))), "no dtype 'object'; there are bool, int8"),
    (Array("int8", (3,), memoryview(bytes(2))), r"2 bytes are not int8 of shape \(3,\)$"),
    (Array("int8", (-1, -2), memoryview(bytes(2))), r"no array has the shape \(-1, -2\)$"),
    (Array("int8", (0, 1 << 62), memoryview(b"")), "no array has the shape"),
    (Array("int8", (1,) * 33, memoryview(b"x")), "33 dimensions; at most 32$"),
    (Array("int8", (2,), memoryview(b"abcd")[::2]), "its bytes do not lie in one piece$"),
]


@pytest.mark.parametrize(("array", "said"), BAD)
def test_arrays_that_do_not_cross(array: Array, said: str) -> None:
    with pytest.raises(UnsendableMessage, match=f"^array 1 of a Chunk does not cross: {said}"):
        encode_arrays(Chunk(), [Array("int8", (0,), memoryview(b"")), array])


@pytest.mark.parametrize("thing", [lambda: None, threading.Lock(), object()])
def test_a_message_that_cannot_cross(thing: object) -> None:  # X15
    with pytest.raises(UnsendableMessage, match=r"^Chunk holds something that cannot cross to a worker: "):
        encode_arrays(Chunk(anything=thing), [])


def test_a_frame_over_the_limit_is_refused_before_memory_is_taken() -> None:  # X8
    big = Array("uint8", (20_000_000,), memoryview(np.zeros(20_000_000, np.uint8)))
    tracemalloc.start()
    try:
        with pytest.raises(UnsendableMessage) as caught:
            encode_arrays(Chunk(), [big] * 20)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert str(caught.value) == (
        "a Chunk and its 20 arrays have 400,000,320 bytes; at most 268,435,456 cross in one frame"
    )


def _frame(head: object, rest: bytes = b"") -> bytes:
    encoded = msgspec.msgpack.encode(head)
    return len(encoded).to_bytes(8, "little") + encoded + rest


DAMAGED = [
    (b"", "0 bytes are not one whole Chunk with arrays: unpack_from requires a buffer of at least 8 bytes"),
    ((1 << 63).to_bytes(8, "little"), "a head of 9223372036854775808 bytes does not fit a frame of 8$"),
    (_frame([{}]), "bytes are not one whole Chunk with arrays: Expected `array` of at least length 2, got 1$"),
    (_frame([{"at": "x"}, []]), r"bytes are not one whole Chunk with arrays: Expected `int`, got `str`"),
    (_frame([{}, [["float32", [1 << 40]]]]), "array 0 of a Chunk is damaged: no array has the shape"),
    (_frame([{}, [["float32", [2]]]]), "array 0 of a Chunk ends at byte 72 of a frame of 22$"),
    (_frame([{}, [["x" * 5000, [2]]]]), "array 0 of a Chunk is damaged: no dtype 'xxx"),
    (_frame([{}, []], b"more"), "4 bytes trail a Chunk and its 0 arrays$"),
]


@pytest.mark.parametrize(("frame", "said"), DAMAGED)
def test_frames_that_are_none(frame: bytes, said: str) -> None:
    with pytest.raises(DamagedMessage, match=said):
        decode_arrays(frame, Chunk)
