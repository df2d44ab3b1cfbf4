"""Messages with arrays beside them: the bytes of arrays travel as they are, outside of msgpack, in one frame.

::

    8 bytes   how long the head is
    the head  msgpack: the message, and (dtype, shape) of each array
    padding   to a multiple of 64
    array 0, padding, array 1, padding, …

Where each array lies follows from the dtypes and shapes before it, so the frame holds no offset that could lie. A
decoded array looks into the frame, which is whoever received it's own copy: it stays valid when the ring has gone
round, and costs no second copy. No torch here, and numpy only in ``Array.of`` and ``as_numpy``: a dtype is a name.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from enginebay.errors import one_line
from enginebay.transport.codec import MAX_FRAME_BYTES, DamagedMessage, UnsendableMessage

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DTYPES", "Array", "decode_arrays", "encode_arrays"]

DTYPES: Final = {
    "bool": 1,
    **{f"{kind}int{bits}": bits // 8 for kind in ("", "u") for bits in (8, 16, 32, 64)},
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
}
"""Name → bytes of an element, little-endian. The names are torch's; all but bfloat16 and float8 are numpy's too."""

_ALIGNMENT: Final = 64
_MAX_DIMENSIONS: Final = 32
_LENGTH: Final = struct.Struct("<Q")

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """Elements in C order: ``dtype`` (a name of ``DTYPES``), ``shape``, and ``data``, their bytes and no others."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @classmethod
    def of(cls, array: np.ndarray[Any, Any]) -> Array:
        """Of a numpy array, copied only when it is not contiguous. Raises ``UnsendableMessage`` naming its dtype."""
        import numpy as np

        name = array.dtype.name
        if name not in DTYPES or not array.dtype.isnative:
            raise UnsendableMessage(f"an array of {array.dtype!r} does not cross; these do: {', '.join(DTYPES)}")
        whole = np.ascontiguousarray(array)
        return cls(name, array.shape, whole.reshape(-1).view(np.uint8).data)

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """A read-only view. Raises ``TypeError`` for what numpy has no name for: take ``data`` then."""
        import numpy as np

        return np.frombuffer(self.data, dtype=self.dtype).reshape(self.shape)


class _Head(msgspec.Struct, array_like=True, frozen=True):
    message: msgspec.Raw
    arrays: list[tuple[str, tuple[int, ...]]]


_ENCODER: Final = msgspec.msgpack.Encoder()
_HEAD: Final = msgspec.msgpack.Decoder(_Head)


def encode_arrays(message: msgspec.Struct, arrays: Sequence[Array], *, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """One frame of ``message`` and ``arrays``.

    Raises ``UnsendableMessage`` for what cannot cross, and for a frame over ``max_bytes`` before memory is taken.
    """
    try:
        head = _ENCODER.encode(_Head(msgspec.Raw(_ENCODER.encode(message)), [(a.dtype, a.shape) for a in arrays]))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        what = type(message).__name__
        raise UnsendableMessage(one_line(f"{what} holds something that cannot cross to a worker: {error}")) from None
    pieces: list[bytes | memoryview] = [_LENGTH.pack(len(head)), head]
    total = _LENGTH.size + len(head)
    for number, array in enumerate(arrays):
        wrong = _why_not(array.dtype, array.shape)
        if wrong is None and array.data.nbytes != _bytes_of(array.dtype, array.shape):
            wrong = f"{array.data.nbytes} bytes are not {array.dtype} of shape {array.shape}"
        if wrong is None and not array.data.c_contiguous:
            wrong = "its bytes do not lie in one piece"
        if wrong is not None:
            raise UnsendableMessage(f"array {number} of a {type(message).__name__} does not cross: {wrong}")
        padding = -total % _ALIGNMENT
        pieces += (bytes(padding), array.data)
        total += padding + array.data.nbytes
    if total > max_bytes:
        raise UnsendableMessage(
            f"a {type(message).__name__} and its {len(arrays)} arrays have {total:,} bytes; at most {max_bytes:,} "
            f"cross in one frame"
        )
    return b"".join(pieces)


def decode_arrays(frame: bytes, kind: type[T]) -> tuple[T, list[Array]]:
    """The message and the arrays of a frame; the arrays look into ``frame``. Raises ``DamagedMessage``."""
    try:
        (length,) = _LENGTH.unpack_from(frame)
        if length > len(frame) - _LENGTH.size:
            raise DamagedMessage(f"a head of {length} bytes does not fit a frame of {len(frame)}")
        head = _HEAD.decode(memoryview(frame)[_LENGTH.size : _LENGTH.size + length])
        message = msgspec.msgpack.decode(head.message, type=kind)
    except (struct.error, msgspec.MsgspecError, RecursionError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, DamagedMessage):
            raise
        raise DamagedMessage(
            one_line(f"{len(frame)} bytes are not one whole {kind.__name__} with arrays: {error}")
        ) from None
    view, at, arrays = memoryview(frame), _LENGTH.size + length, []
    for number, (dtype, shape) in enumerate(head.arrays):
        wrong = _why_not(dtype, shape)
        if wrong is not None:
            raise DamagedMessage(one_line(f"array {number} of a {kind.__name__} is damaged: {wrong}"))
        at += -at % _ALIGNMENT
        end = at + _bytes_of(dtype, shape)
        if end > len(frame):
            raise DamagedMessage(f"array {number} of a {kind.__name__} ends at byte {end} of a frame of {len(frame)}")
        arrays.append(Array(dtype, shape, view[at:end]))
        at = end
    if at != len(frame):
        raise DamagedMessage(f"{len(frame) - at} bytes trail a {kind.__name__} and its {len(arrays)} arrays")
    return message, arrays


def _bytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * DTYPES[dtype]


def _why_not(dtype: str, shape: tuple[int, ...]) -> str | None:
    """What is wrong with an array of that dtype and shape, or None."""
    if dtype not in DTYPES:
        return f"no dtype {dtype!r}; there are {', '.join(DTYPES)}"
    if len(shape) > _MAX_DIMENSIONS:
        return f"{len(shape)} dimensions; at most {_MAX_DIMENSIONS}"
    # an empty array may still have dimensions that no memory could hold, and numpy refuses them
    if any(size < 0 for size in shape) or math.prod(size or 1 for size in shape) > MAX_FRAME_BYTES:
        return f"no array has the shape {shape}"
    return None
