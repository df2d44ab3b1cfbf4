"""Streams to front ends: gapless whatever is slow or lost, and bounded in what is under way."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.engine.service.streams import FRAME_BYTES, WINDOW_BYTES, Stream, frames_of
from enginebay.engine.sinks import PendingDelta
from enginebay.errors import EngineBusy, InvalidRequest
from enginebay.messages import Delta, Failed, FinishReason, RequestOutput, ToFront, TokenLogprob, Usage

ACTIONS = ("put", "put", "put", "read", "read quietly", "shut", "open", "break")
DECODER = msgspec.msgpack.Decoder(ToFront)


def output(offset: int, tokens: int, *, choice: int = 0, end: bool = False, logprobs: bool = False) -> RequestOutput:
    ids = tuple(range(offset, offset + tokens))
    told = tuple(TokenLogprob(token_id=i, logprob=-1.0, rank=1, top=((i, -1.0),) * 20) for i in ids)
    return RequestOutput(
        request_id="7/a",
        choice=choice,
        offset=offset,
        token_ids=ids,
        text="".join(chr(97 + i % 26) for i in ids),
        logprobs=told if logprobs else (),
        prompt_logprobs=told if logprobs and offset == 0 else (),
        finish_reason=FinishReason.LENGTH if end else None,
        usage=Usage(completion_tokens=offset + tokens) if end else None,
    )


class Reader:
    """A front end: takes frames while it is open, and joins them."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.queued: list[bytes] = []
        self.is_open = True
        self.number = 0
        self.whole: dict[int, PendingDelta] = {}
        self.failure: Failed | None = None

    def send(self, frame: bytes) -> bool:
        if self.is_open:
            self.queued.append(frame)
        return self.is_open

    def read(self, *, acknowledge: bool = True) -> None:
        for frame in self.queued:
            message = DECODER.decode(frame)
            assert isinstance(message, Delta | Failed)
            if message.number <= self.number:
                continue
            assert message.number == self.number + 1, "a gap"
            self.number = message.number
            if isinstance(message, Failed):
                self.failure = message
            else:
                assert message.output.request_id == "a"
                self.whole.setdefault(message.output.choice, PendingDelta()).add(message.output)  # asserts offsets
        self.queued.clear()
        if acknowledge:
            self.stream.taken(self.number)


@pytest.fixture
def stream() -> Stream:
    return Stream("a", "7/a", n=1, on_news=lambda stream: None)


def test_a_fast_reader_gets_each_delta(stream: Stream) -> None:
    reader = Reader(stream)
    for offset in range(5):
        stream.put(output(offset, 1, end=offset == 4))
        assert stream.pump(reader.send)
        assert len(reader.queued) == 1
        reader.read()
    assert reader.whole[0].whole() == msgspec.structs.replace(output(0, 5, end=True), request_id="a")
    assert stream.is_delivered


def test_a_slow_reader_has_a_bounded_queue_and_then_gets_all(stream: Stream) -> None:  # R10
    reader = Reader(stream)
    for offset in range(0, 4000, 4):
        stream.put(output(offset, 4, logprobs=True, end=offset == 3996))
        stream.pump(reader.send)
    queued = sum(map(len, reader.queued))
    assert WINDOW_BYTES - 2 * FRAME_BYTES < queued <= WINDOW_BYTES
    assert stream.is_finished
    assert not stream.is_delivered
    while not stream.is_delivered:
        reader.read()
        assert stream.pump(reader.send)
        assert sum(map(len, reader.queued)) <= WINDOW_BYTES
    whole = reader.whole[0].whole()
    assert whole.token_ids == tuple(range(4000))
    assert len(whole.logprobs) == 4000
    assert whole.text == output(0, 4000).text
    assert whole.finish_reason is FinishReason.LENGTH


def test_a_socket_that_is_full_is_offered_the_same_again(stream: Stream) -> None:
    reader = Reader(stream)
    reader.is_open = False
    stream.put(output(0, 3))
    stream.put(output(3, 1, end=True))
    assert not stream.pump(reader.send)
    reader.is_open = True
    assert stream.pump(reader.send)
    reader.read()
    assert reader.whole[0].whole().token_ids == (0, 1, 2, 3)


def test_a_failure_is_the_last_frame(stream: Stream) -> None:
    reader = Reader(stream)
    stream.put(output(0, 2))
    stream.fail(InvalidRequest("no", param="top_p"))
    stream.pump(reader.send)
    reader.read()
    assert reader.whole[0].whole().token_ids == (0, 1)
    assert reader.failure == Failed(number=2, request_id="a", kind="InvalidRequest", message="no", param="top_p")
    assert stream.is_delivered


def test_an_error_of_a_private_class_is_told_as_the_public_one_above_it(stream: Stream) -> None:
    class Private(EngineBusy):
        """Of one module."""

    reader = Reader(stream)
    stream.fail(Private("later"))
    stream.pump(reader.send)
    reader.read()
    assert reader.failure is not None
    assert reader.failure.kind == "EngineBusy"


@given(
    actions=st.lists(
        st.sampled_from(["put", "put", "put", "read", "read quietly", "shut", "open", "break"]), max_size=60
    ),
    sizes=st.lists(st.integers(1, 40), min_size=60, max_size=60),
    logprobs=st.booleans(),
)
@settings(max_examples=150)
def test_no_gap_and_nothing_twice_whatever_happens(actions: list[str], sizes: list[int], logprobs: bool) -> None:  # R10
    stream = Stream("a", "7/a", n=2, on_news=lambda stream: None)
    reader = Reader(stream)
    offsets = [0, 0]
    do: dict[str, Callable[[], object]] = {
        "read": reader.read,
        "read quietly": lambda: reader.read(acknowledge=False),
        "shut": lambda: setattr(reader, "is_open", False),
        "open": lambda: setattr(reader, "is_open", True),
    }
    for turn, action in enumerate(actions):
        choice, size = sizes[turn] % 2, sizes[turn]
        if action == "put":
            stream.put(output(offsets[choice], size, choice=choice, logprobs=logprobs))
            offsets[choice] += size
        elif action == "break":  # what was on its way is lost
            reader.queued.clear()
            stream.restart(reader.number)
        else:
            do[action]()
        stream.pump(reader.send)
    for choice in (0, 1):
        stream.put(output(offsets[choice], 1, choice=choice, end=True))
    reader.is_open = True
    for _ in range(1000):
        if stream.is_delivered:
            break
        stream.pump(reader.send)
        reader.read()
    assert stream.is_delivered
    for choice in (0, 1):
        assert reader.whole[choice].whole().token_ids == tuple(range(offsets[choice] + 1))
        assert reader.whole[choice].whole().text == output(0, offsets[choice] + 1).text


@given(tokens=st.integers(0, 3000), logprobs=st.booleans(), text=st.text(max_size=50))
@settings(max_examples=50)
def test_a_delta_in_parts_is_the_same_delta(tokens: int, logprobs: bool, text: str) -> None:
    whole = msgspec.structs.replace(output(0, tokens, end=True, logprobs=logprobs), text=text * 1000)
    parts = list(frames_of(whole))
    joined = PendingDelta()
    for part in parts:
        joined.add(part)
    assert joined.whole() == whole
    if len(text) * 1000 < FRAME_BYTES // 4:
        assert max(len(msgspec.msgpack.encode(part)) for part in parts) < 2 * FRAME_BYTES
