"""How messages become bytes and come back: the codec that every executor's two halves share, and ``unwrap``.

Executors carry bytes; this package is the only place that knows what is inside them. Nothing here pickles: frames
are msgpack, typed on both ends, bounded in size before memory is taken, and damaged bytes raise ``DamagedMessage``.
"""

from enginebay.transport.calls import PendingCalls, not_started
from enginebay.transport.codec import (
    MAX_FRAME_BYTES,
    DamagedMessage,
    TransportError,
    UnsendableMessage,
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
from enginebay.transport.unwrap import failure_error, raise_failures, results_of, unwrap

__all__ = [
    "MAX_FRAME_BYTES",
    "DamagedMessage",
    "PendingCalls",
    "TransportError",
    "UnsendableMessage",
    "decode_call",
    "decode_envelope",
    "decode_reply",
    "decode_result",
    "decode_start_payload",
    "encode",
    "encode_envelope",
    "encode_envelope_head",
    "encode_reply",
    "encode_start_payload",
    "failure_error",
    "not_started",
    "open_envelope",
    "raise_failures",
    "results_of",
    "unwrap",
]
