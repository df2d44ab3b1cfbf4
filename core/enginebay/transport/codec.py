"""Typed msgpack for everything that crosses between the engine and its workers.

Encoding refuses what cannot cross, at the sender, before anything is sent; decoding validates every field and turns
whatever is wrong with the bytes into ``DamagedMessage``. Byte fields are copies: nothing aliases the frame's buffer,
except the payload that ``open_envelope`` shows.
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
"""What stands before the payload in the frame of a reply: generation, call id."""
REPLY_HEAD_BYTES: Final = REPLY_HEAD.size
_LENGTH: Final = struct.Struct("<I")
_LENGTH_BYTES: Final = _LENGTH.size


class EnvelopeHead(msgspec.Struct, frozen=True, array_like=True):
    """An envelope without its payload, which is never copied through msgpack."""

    generation: int
    call_id: int
    ranks: tuple[int, ...] | None
    deadline: float | None
    traceparent: str


_HEAD: Final = msgspec.msgpack.Decoder(EnvelopeHead)

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
        EnvelopeHead(envelope.generation, envelope.call_id, envelope.ranks, envelope.deadline, envelope.traceparent)
    )
    size = _LENGTH_BYTES + len(head) + len(envelope.payload)
    if size > MAX_FRAME_BYTES:
        raise _too_large("Envelope", size)
    return _LENGTH.pack(len(head)) + head


def encode_start_payload(payload: StartPayload) -> bytes:
    """The bytes that ``enginebay.worker.serve`` is given."""
    return _encode(payload)


def encode_reply(generation: int, call_id: int, payload: bytes) -> bytes:
    """One frame for a worker's reply: both numbers as little-endian 64-bit integers, then the encoded result."""
    return REPLY_HEAD.pack(generation, call_id) + payload


def decode_call(frame: bytes | memoryview) -> Call:
    """The call in ``frame``; raises ``DamagedMessage``."""
    return _decode(_CALL, frame, "call", len(frame))


def decode_result(frame: bytes) -> Result:
    """The result in ``frame``; raises ``DamagedMessage``."""
    return _decode(_RESULT, frame, "result", len(frame))


def decode_envelope(frame: bytes) -> Envelope:
    """The envelope in ``frame``; its payload is not looked at. Raises ``DamagedMessage``."""
    head, payload = open_envelope(frame)
    return Envelope(
        generation=head.generation,
        call_id=head.call_id,
        payload=bytes(payload),
        ranks=head.ranks,
        deadline=head.deadline,
        traceparent=head.traceparent,
    )


def open_envelope(frame: bytes) -> tuple[EnvelopeHead, memoryview]:
    """What ``decode_envelope`` brings, but a view of the payload where it lies in ``frame``.

    For who decodes the payload at once: a large one is not copied once more for it. Raises ``DamagedMessage``.
    """
    size = len(frame)
    if size > MAX_FRAME_BYTES:
        raise _over_limit("envelope", size)
    end = _LENGTH_BYTES + (_LENGTH.unpack_from(frame)[0] if size >= _LENGTH_BYTES else 0)
    if end > size:
        raise DamagedMessage(f"{size} bytes are not one whole envelope: its head ends at byte {end}")
    return _decode(_HEAD, frame[_LENGTH_BYTES:end], "envelope", size), memoryview(frame)[end:]


def decode_start_payload(frame: bytes) -> StartPayload:
    """The start payload in ``frame``; raises ``DamagedMessage``."""
    return _decode(_START, frame, "start payload", len(frame))


def decode_reply(frame: bytes) -> tuple[int, int, bytes]:
    """(generation, call id, encoded result) of a frame made by ``encode_reply``; raises ``DamagedMessage``."""
    size = len(frame) - REPLY_HEAD_BYTES
    if size < 0:
        raise DamagedMessage(f"a reply of {len(frame)} bytes is shorter than its head of {REPLY_HEAD_BYTES}")
    if size > MAX_FRAME_BYTES:
        raise _over_limit("reply", size)
    generation, call_id = REPLY_HEAD.unpack_from(frame)
    return generation, call_id, frame[REPLY_HEAD_BYTES:]


def _encode(message: msgspec.Struct) -> bytes:
    if not isinstance(message, msgspec.Struct):
        raise UnsendableMessage(
            f"{type(message).__name__} is not a message; only the structs of enginebay.messages cross"
        )
    try:
        frame = _ENCODER.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        what = type(message).__name__
        raise UnsendableMessage(one_line(f"{what} holds something that cannot cross to a worker: {error}")) from None
    if len(frame) > MAX_FRAME_BYTES:
        raise _too_large(type(message).__name__, len(frame))
    return frame


def _too_large(what: str, size: int) -> UnsendableMessage:
    return UnsendableMessage(f"{what} has {size} bytes; at most {MAX_FRAME_BYTES} cross in one frame")


def _decode(decoder: msgspec.msgpack.Decoder[T], part: bytes | memoryview, what: str, size: int) -> T:
    """The message in ``part`` of a frame of ``size`` bytes."""
    if size > MAX_FRAME_BYTES:
        raise _over_limit(what, size)
    try:
        return decoder.decode(part)
    except _BAD_BYTES as error:
        raise DamagedMessage(
            one_line(f"{size} bytes are not one whole {what}: {type(error).__name__}: {error}")
        ) from None


def _over_limit(what: str, size: int) -> DamagedMessage:
    return DamagedMessage(f"a {what} of {size} bytes is over the limit of {MAX_FRAME_BYTES}")
