"""Read a GGUF file's header with every count, length and offset checked against the file's size.

The file comes from strangers: nothing here allocates or loops by a number that the file's own size does not bear out.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import errno
import mmap
import struct
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from enginebay.errors import ModelError, one_line

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_NUMPY = {
    "B": "u1",
    "b": "i1",
    "H": "u2",
    "h": "i2",
    "I": "u4",
    "i": "i4",
    "f": "f4",
    "?": "b1",
    "Q": "u8",
    "q": "i8",
    "d": "f8",
}
_MAX_DIMS = 4
_MAX_NAME = 256
_DEFAULT_ALIGNMENT = 32
_SMALLEST_KEY = 8 + 4 + 1  # an empty name, a type, one byte
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """One tensor's place. ``shape`` is row-major (the file's order reversed); ``start`` counts from the file's."""

    name: str
    shape: tuple[int, ...]
    kind: str
    start: int
    size: int


class GgufFile:
    """An open GGUF file: ``metadata`` by key, ``tensors`` by name, and the mapped bytes. A context manager.

    Raises ``ModelError`` in one line for whatever is wrong with the file; it names the file and the first fault.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        try:
            with path.open("rb") as file:
                self.size = file.seek(0, 2)
                if self.size < len(_MAGIC) + 4 + 16:
                    raise ModelError(f"{path} is no GGUF file: it has only {self.size} bytes")
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise MemoryError from error
            raise ModelError(f"cannot read {path}: {error.strerror}") from error
        try:
            self._read_header()
        except BaseException:
            self._bytes.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bytes.close()

    def read(self, start: int, size: int) -> NDArray[np.uint8]:
        """A copy of ``size`` bytes from ``start``."""
        return np.frombuffer(self._bytes[start : start + size], dtype=np.uint8)

    def _read_header(self) -> None:
        if self._bytes[:4] != _MAGIC:
            raise ModelError(f"{self.path} is no GGUF file: it begins with {self._bytes[:4]!r} instead of {_MAGIC!r}")
        self._at = 4
        version = self._scalar("I", "the version")
        if version not in (2, 3):
            swapped = " (a big-endian file)" if version & 0xFFFF == 0 and version else ""
            raise ModelError(
                f"{self.path}: GGUF version {version}{swapped} is not supported, only 2 and 3, little-endian"
            )
        num_tensors = self._scalar("Q", "the number of tensors")
        num_keys = self._scalar("Q", "the number of metadata keys")
        if num_keys * _SMALLEST_KEY + num_tensors * _SMALLEST_TENSOR > self.size:
            raise self._truncated(f"{num_tensors} tensors and {num_keys} metadata keys do not fit into it")
        for _ in range(num_keys):
            key = self._string("a metadata key", _MAX_NAME)
            if key in self.metadata:
                raise self._damaged(f"metadata key '{key}' is there twice")
            self.metadata[key] = self._value(self._scalar("I", f"the type of '{key}'"), key)
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self._damaged(f"general.alignment is {alignment!r}, not a power of two")
        names: set[str] = set()
        infos = [self._tensor_info(names) for _ in range(num_tensors)]
        data_start = -(-self._at // alignment) * alignment
        for name, shape, kind, offset, size in infos:
            if offset % alignment:
                raise self._damaged(f"tensor '{name}' begins at {offset}, which is no multiple of {alignment}")
            start = data_start + offset
            if start + size > self.size:
                raise self._truncated(
                    f"tensor '{name}' needs the bytes {start} to {start + size}, and the file has {self.size}"
                )
            self.tensors[name] = GgufTensor(name=name, shape=shape, kind=kind, start=start, size=size)
        self._refuse_overlaps()

    def _refuse_overlaps(self) -> None:
        placed = sorted(self.tensors.values(), key=lambda tensor: tensor.start)
        for one, other in pairwise(placed):
            if other.start < one.start + one.size:
                raise self._damaged(f"tensors '{one.name}' and '{other.name}' overlap")

    def _tensor_info(self, names: set[str]) -> tuple[str, tuple[int, ...], str, int, int]:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        name = self._string("a tensor's name", _MAX_NAME)
        if name in names:
            raise self._damaged(f"tensor '{name}' is there twice")
        names.add(name)
        num_dims = self._scalar("I", f"the dimensions of tensor '{name}'")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise self._damaged(f"tensor '{name}' has {num_dims} dimensions")
        shape = tuple(self._scalar("Q", f"the shape of tensor '{name}'") for _ in range(num_dims))[::-1]
        number = self._scalar("I", f"the type of tensor '{name}'")
        offset = self._scalar("Q", f"the offset of tensor '{name}'")
        try:
            kind = GGMLQuantizationType(number)
            block, block_bytes = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise ModelError(f"{self.path}: tensor '{name}' has the unknown type {number}") from None
        if 0 in shape or shape[-1] % block:
            raise self._damaged(f"tensor '{name}' of type {kind.name} cannot have the shape {list(shape)}")
        return name, shape, str(kind.name), offset, prod(shape) // block * block_bytes

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string(f"'{key}'")
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind], f"'{key}'")
        if kind != _ARRAY:
            raise self._damaged(f"metadata key '{key}' has the unknown type {kind}")
        item, length = self._scalar("I", f"'{key}'"), self._scalar("Q", f"'{key}'")
        if item == _STRING:
            if length * 8 > self.size - self._at:
                raise self._truncated(f"'{key}' promises {length} strings, and {self.size - self._at} bytes are left")
            return [self._string(f"'{key}'") for _ in range(length)]
        if item not in _SCALARS:
            raise self._damaged(f"metadata key '{key}' is a list of the unknown type {item}")
        dtype = np.dtype("<" + _NUMPY[_SCALARS[item]])
        if length * dtype.itemsize > self.size - self._at:
            raise self._truncated(f"'{key}' promises {length} values, and {self.size - self._at} bytes are left")
        values = self.read(self._at, length * dtype.itemsize).view(dtype)
        self._at += length * dtype.itemsize
        return values

    def _scalar(self, code: str, what: str) -> Any:
        size = struct.calcsize("<" + code)
        if self._at + size > self.size:
            raise self._truncated(f"it ends at byte {self.size}, inside {what}")
        (value,) = struct.unpack_from("<" + code, self._bytes, self._at)
        self._at += size
        return value

    def _string(self, what: str, longest: int | None = None) -> str:
        length = self._scalar("Q", what)
        if length > self.size - self._at:
            raise self._truncated(f"{what} promises {length} bytes, and {self.size - self._at} are left")
        if longest is not None and length > longest:
            raise self._damaged(f"{what} has {length} bytes")
        raw = self._bytes[self._at : self._at + length]
        self._at += length
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._damaged(f"{what} is not UTF-8") from None

    def _truncated(self, why: str) -> ModelError:
        return ModelError(one_line(f"{self.path} is truncated or damaged: {why}. Fetch the file again."))

    def _damaged(self, why: str) -> ModelError:
        return ModelError(one_line(f"{self.path} is damaged: {why}. Fetch the file again."))
