"""Typed msgpack for everything that crosses between the engine and its workers.

Encoding refuses what cannot cross, at the sender, before anything is sent; decoding validates every field and turns
whatever is wrong with the bytes into ``DamagedMessage``. Byte fields are copies: nothing aliases the frame's buffer.
"""

from __future__ import annotations

import struct
from typing import Final, TypeVar

import msgspec

from enginebay.errors import EngineDead, one_line
from enginebay.messages import Call, Envelope, Result, StartPayload

MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
"""Upper bound of one frame. A step of 1,024 prompts of 32,768 tokens takes about 160 MB."""

T = TypeVar("T")


class TransportError(EngineDead):
    """A message could not cross between the engine and a worker; it shows a fault of code, not of a request."""


class UnsendableMessage(TransportError, TypeError):
    """The message holds an object that cannot cross (a function, a lock, …); nothing was sent."""


class DamagedMessage(TransportError, ValueError):
    """The bytes are not one whole message of the expected kind."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_CALL: Final[msgspec.msgpack.Decoder[Call]] = msgspec.msgpack.Decoder(Call)
_RESULT: Final[msgspec.msgpack.Decoder[Result]] = msgspec.msgpack.Decoder(Result)
_START: Final = msgspec.msgpack.Decoder(StartPayload)
REPLY_HEAD: Final = struct.Struct("<qq")
_LENGTH_BYTES: Final = 4


class _Head(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """An envelope without its payload, which is never copied through msgpack."""

    generation: int
    call_id: int
    ranks: tuple[int, ...] | None
    deadline: float | None
    traceparent: str


_HEAD: Final = msgspec.msgpack.Decoder(_Head)
"""What stands before the payload in the frame of a reply: generation, call id."""

# What msgspec raises on bad bytes: its own errors, RecursionError on depth bombs, UnicodeDecodeError (a ValueError)
# on strings, OverflowError on numbers.
_BAD_BYTES: Final = (msgspec.MsgspecError, RecursionError, ValueError, OverflowError, MemoryError)


def encode(message: Call | Result) -> bytes:
    """The bytes of a call or a result; raises ``UnsendableMessage`` naming what cannot cross."""
    return _encode(message)


def encode_envelope(envelope: Envelope) -> bytes:
    """The bytes of an envelope: its head, then its payload as it is."""
    return encode_envelope_head(envelope) + envelope.payload


def encode_envelope_head(envelope: Envelope) -> bytes:
    """What stands before the payload: for a line that can send both without putting them together first."""
    head = _encode(
        _Head(
            generation=envelope.generation,
            call_id=envelope.call_id,
            ranks=envelope.ranks,
            deadline=envelope.deadline,
            traceparent=envelope.traceparent,
        )
    )
    _check_sendable("Envelope", _LENGTH_BYTES + len(head) + len(envelope.payload))
    return len(head).to_bytes(_LENGTH_BYTES, "little") + head


def encode_start_payload(payload: StartPayload) -> bytes:
    """The bytes that ``enginebay.worker.serve`` is given."""
    return _encode(payload)


def encode_reply(generation: int, call_id: int, payload: bytes) -> bytes:
    """One frame for a worker's reply: both numbers as little-endian 64-bit integers, then the encoded result."""
    return REPLY_HEAD.pack(generation, call_id) + payload


def decode_call(frame: bytes) -> Call:
    """The call in ``frame``; raises ``DamagedMessage``."""
    return _decode(_CALL, frame, "call")


def decode_result(frame: bytes) -> Result:
    """The result in ``frame``; raises ``DamagedMessage``."""
    return _decode(_RESULT, frame, "result")


def decode_envelope(frame: bytes) -> Envelope:
    """The envelope in ``frame``; its payload is not looked at. Raises ``DamagedMessage``."""
    _check_size(len(frame), "envelope")
    end = _LENGTH_BYTES + int.from_bytes(frame[:_LENGTH_BYTES], "little")
    if end > len(frame):
        raise DamagedMessage(f"{len(frame)} bytes are not one whole envelope: its head ends at byte {end}")
    head = _decoded(_HEAD, frame[_LENGTH_BYTES:end], "envelope", len(frame))
    return Envelope(
        generation=head.generation,
        call_id=head.call_id,
        payload=frame[end:],
        ranks=head.ranks,
        deadline=head.deadline,
        traceparent=head.traceparent,
    )


def decode_start_payload(frame: bytes) -> StartPayload:
    """The start payload in ``frame``; raises ``DamagedMessage``."""
    return _decode(_START, frame, "start payload")


def decode_reply(frame: bytes) -> tuple[int, int, bytes]:
    """(generation, call id, encoded result) of a frame made by ``encode_reply``; raises ``DamagedMessage``."""
    _check_size(len(frame) - REPLY_HEAD.size, "reply")
    if len(frame) < REPLY_HEAD.size:
        raise DamagedMessage(f"a reply of {len(frame)} bytes is shorter than its head of {REPLY_HEAD.size}")
    generation, call_id = REPLY_HEAD.unpack_from(frame)
    return generation, call_id, frame[REPLY_HEAD.size :]


def _encode(message: msgspec.Struct) -> bytes:
    what = type(message).__name__
    if not isinstance(message, msgspec.Struct):
        raise UnsendableMessage(f"{what} is not a message; only the structs of enginebay.messages cross")
    try:
        frame = _ENCODER.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise UnsendableMessage(one_line(f"{what} holds something that cannot cross to a worker: {error}")) from None
    _check_sendable(what, len(frame))
    return frame


def _check_sendable(what: str, size: int) -> None:
    if size > MAX_FRAME_BYTES:
        raise UnsendableMessage(f"{what} has {size} bytes; at most {MAX_FRAME_BYTES} cross in one frame")


def _decode(decoder: msgspec.msgpack.Decoder[T], frame: bytes, what: str) -> T:
    _check_size(len(frame), what)
    return _decoded(decoder, frame, what, len(frame))


def _decoded(decoder: msgspec.msgpack.Decoder[T], part: bytes, what: str, size: int) -> T:
    try:
        return decoder.decode(part)
    except _BAD_BYTES as error:
        raise DamagedMessage(
            one_line(f"{size} bytes are not one whole {what}: {type(error).__name__}: {error}")
        ) from None


def _check_size(size: int, what: str) -> None:
    if size > MAX_FRAME_BYTES:
        raise DamagedMessage(f"a {what} of {size} bytes is over the limit of {MAX_FRAME_BYTES}")
