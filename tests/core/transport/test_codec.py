"""The codec: what goes in comes out, and no bytes whatever do more than raise ``DamagedMessage``."""

from __future__ import annotations

import struct
import threading
import types
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay import messages
from enginebay.messages import (
    Call,
    Envelope,
    ExecuteModel,
    InitializeKVCache,
    ModelRunnerOutput,
    Result,
    SchedulerOutput,
    StepResult,
)
from enginebay.transport import (
    DamagedMessage,
    UnsendableMessage,
    codec,
    decode_call,
    decode_envelope,
    decode_reply,
    decode_result,
    decode_start_payload,
    encode,
    encode_envelope,
    encode_envelope_head,
    encode_reply,
    encode_start_payload,
    open_envelope,
)
from support.messages import CROSSING

CODECS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "call": (encode, decode_call),
    "result": (encode, decode_result),
    "envelope": (encode_envelope, decode_envelope),
    "start payload": (encode_start_payload, decode_start_payload),
}


@pytest.mark.parametrize("what", CODECS)
@given(data=st.data())
@settings(max_examples=60)
def test_round_trip(what: str, data: st.DataObject) -> None:
    there, back = CODECS[what]
    message = data.draw(CROSSING[what])
    frame = there(message)
    assert back(frame) == message
    assert type(back(frame)) is type(message)
    assert there(back(frame)) == frame


@pytest.mark.parametrize(("what", "union"), [("call", Call), ("result", Result)])
def test_every_call_and_result_is_covered_by_the_strategies(what: str, union: types.UnionType) -> None:
    drawn: set[str] = set()

    @given(CROSSING[what])
    @settings(max_examples=1000, database=None)
    def collect(message: object) -> None:
        drawn.add(type(message).__name__)

    collect()
    assert drawn == {member.__name__ for member in get_args(union)}


@pytest.mark.parametrize("what", CODECS)
@given(data=st.data())
@settings(max_examples=150)
def test_damaged_bytes_raise_one_error(what: str, data: st.DataObject) -> None:
    there, back = CODECS[what]
    frame = bytearray(there(data.draw(CROSSING[what])))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(frame)))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "drop"])):
            case "flip" if place < len(frame):
                frame[place] = data.draw(st.integers(0, 255))
            case "cut":
                del frame[place:]
            case "insert":
                frame[place:place] = data.draw(st.binary(max_size=8))
            case _:
                del frame[place : place + 3]
    _only_damaged(back, bytes(frame), what)


@pytest.mark.parametrize("what", CODECS)
@given(frame=st.binary(max_size=200))
@settings(max_examples=100)
def test_any_bytes_raise_one_error(what: str, frame: bytes) -> None:
    _only_damaged(CODECS[what][1], frame, what)


def _only_damaged(back: Callable[[bytes], Any], frame: bytes, what: str) -> None:
    try:
        message = back(frame)
    except DamagedMessage as error:
        assert str(error).startswith(f"{len(frame)} bytes are not one whole {what}: ")  # noqa: PT017  # most do not raise
    else:
        assert type(message).__module__.startswith("enginebay.messages.")


BOMBS = {
    "empty": b"",
    "depth bomb": b"\x91" * 100_000,
    "map of depth": b"\x81\xa1a" * 50_000,
    "array of four billion": b"\xdd\xff\xff\xff\xff",
    "map of four billion": b"\xdf\xff\xff\xff\xff",
    "string of four billion": b"\xdb\xff\xff\xff\xff",
    "bytes of four billion": b"\xc6\xff\xff\xff\xff",
    "no utf-8": b"\x81\xa4type\xa2\xff\xfe",
    "unknown call": b"\x81\xa4type\xa4boom",
    "never used byte": b"\xc1",
    "two messages": 2 * encode(InitializeKVCache(num_blocks=1)),
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("what", CODECS)
def test_bombs(what: str, bomb: str) -> None:
    with pytest.raises(DamagedMessage):
        CODECS[what][1](BOMBS[bomb])


def test_a_depth_bomb_inside_a_field() -> None:
    # the model's config is the one field of any shape
    frame = encode_start_payload(_start())
    deep = frame.replace(b"\xa6config\x80", b"\xa6config\x81\xa1a" + b"\x91" * 100_000 + b"\xc0")
    assert len(deep) > len(frame)
    with pytest.raises(DamagedMessage, match="RecursionError"):
        decode_start_payload(deep)


def _start() -> messages.StartPayload:
    from support.workers import payload

    return payload()


def test_a_wrong_type_in_a_field_is_named() -> None:
    frame = encode(InitializeKVCache(num_blocks="seven"))  # type: ignore[arg-type]  # the fault under test
    with pytest.raises(DamagedMessage) as caught:
        decode_call(frame)
    assert str(caught.value) == (
        f"{len(frame)} bytes are not one whole call: ValidationError: Expected `int`, got `str` - at `$.num_blocks`"
    )


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (threading.Lock(), "Encoding objects of type _thread.lock is unsupported"),
        (lambda: 0, "Encoding objects of type function is unsupported"),
        (object(), "Encoding objects of type object is unsupported"),
        (2**70, "can't serialize ints < -2**63 or > 2**64 - 1"),
        ("\ud800", "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed"),
    ],
)
def test_what_cannot_cross_is_refused_at_the_sender(thing: Any, said: str) -> None:  # X15
    call = ExecuteModel(scheduler_output=SchedulerOutput(step=0, annex={"mine": thing}))
    with pytest.raises(UnsendableMessage) as caught:
        encode(call)
    assert str(caught.value) == f"ExecuteModel holds something that cannot cross to a worker: {said}"
    with pytest.raises(TypeError, match=r"^StepResult holds something that cannot cross to a worker: "):
        encode(StepResult(output=ModelRunnerOutput(annex={"mine": thing})))


def test_something_that_is_no_message() -> None:
    with pytest.raises(UnsendableMessage, match=r"^dict is not a message; only the structs of enginebay\.messages "):
        encode({"type": "init_worker"})  # type: ignore[arg-type]  # the fault under test


def test_a_loop_cannot_cross() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UnsendableMessage, match="cannot cross to a worker: maximum recursion depth exceeded"):
        encode(InitializeKVCache(num_blocks=loop))  # type: ignore[arg-type]  # the fault under test


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", 100)
    with pytest.raises(UnsendableMessage) as caught:
        encode_envelope(Envelope(generation=0, call_id=0, payload=b"x" * 100))
    assert str(caught.value) == "Envelope has 110 bytes; at most 100 cross in one frame"
    for back in (*(back for _, back in CODECS.values()), lambda frame: decode_reply(bytes(16) + frame)):
        with pytest.raises(DamagedMessage, match=r" of 101 bytes is over the limit of 100$"):
            back(b"x" * 101)
    assert decode_reply(encode_reply(1, 2, b"x" * 100)) == (1, 2, b"x" * 100)  # what ``encode`` lets out comes in


@given(CROSSING["envelope"])
def test_an_envelope_is_its_head_and_then_its_payload(envelope: Envelope) -> None:
    assert encode_envelope(envelope) == encode_envelope_head(envelope) + envelope.payload


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=50))
def test_reply_frames(generation: int, call_id: int, payload: bytes) -> None:
    frame = encode_reply(generation, call_id, payload)
    assert decode_reply(frame) == (generation, call_id, payload)
    assert struct.unpack("<qq", frame[:16]) == (generation, call_id)


def test_a_short_reply_frame() -> None:
    with pytest.raises(DamagedMessage, match=r"^a reply of 15 bytes is shorter than its head of 16$"):
        decode_reply(b"x" * 15)


def test_decoded_bytes_do_not_alias_the_frame() -> None:
    frame = bytearray(encode_envelope(Envelope(generation=0, call_id=0, payload=b"payload")))
    envelope = decode_envelope(frame)  # type: ignore[arg-type]  # a buffer that will be used again
    frame[:] = bytes(len(frame))
    assert envelope.payload == b"payload"


@given(CROSSING["envelope"])
def test_an_open_envelope_shows_its_payload_where_it_lies(envelope: Envelope) -> None:
    frame = encode_envelope(envelope)
    head, payload = open_envelope(frame)
    assert payload.obj is frame
    assert Envelope(**msgspec.structs.asdict(head), payload=bytes(payload)) == envelope


def test_a_field_of_a_later_version_is_ignored() -> None:  # EVOLVE
    frame = encode(InitializeKVCache(num_blocks=3))
    later = b"\x83" + frame[1:] + b"\xa3new\xa5field"
    assert decode_call(later) == InitializeKVCache(num_blocks=3)
