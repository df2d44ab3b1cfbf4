"""Weights from a running worker to one that has none: a group of two, one tensor after the other, bit by bit.

Both ends meet at a file on their host and speak through Gloo, over the loopback interface. Neither joins the other's
world: the group of two is made for the transfer and ends with it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec
import torch
import torch.distributed

from enginebay.errors import StartFailed, one_line
from enginebay.messages import WeightsSent

__all__ = ["receive", "send"]

_SENDER, _RECEIVER = 0, 1
_AGREED: Final = b"agreed"
_WORDS_AT_ONCE: Final = 1 << 22
_LOOK_SECONDS: Final = 0.002
_MODULUS: Final = (1 << 61) - 1
_DIST: Final[Any] = torch.distributed
"""Whose stores and groups are made in C++, and have no types."""


def send(weights: Mapping[str, torch.Tensor], rendezvous: str, rank: int, timeout: float) -> WeightsSent:
    """Give all of ``weights`` to the peer; ``timeout`` in seconds bounds each wait.

    Raises ``StartFailed`` when the peer does not come, wants others, or is gone in the middle.
    """
    with _group_of_two(rendezvous, rank, _SENDER, timeout) as (group, store):
        store.set("weights", msgspec.json.encode(_manifest(weights)))
        answer = store.wait_for("answer")
        if answer != _AGREED:
            raise StartFailed(f"the peer wants other weights: {one_line(answer.decode('utf-8', 'replace'))}")
        total = num_bytes = 0
        for tensor in weights.values():
            flat = _bytes_of(tensor)
            group.broadcast(flat, _SENDER).wait(timedelta(seconds=timeout))
            total, num_bytes = _summed(total, flat), num_bytes + flat.numel()
        store.set("sum", f"{total:016x}")
        store.wait_for("done")  # else the group would end under the peer
        return WeightsSent(num_bytes=num_bytes, checksum=f"{total:016x}")


def receive(weights: Mapping[str, torch.Tensor], rendezvous: str, rank: int, timeout: float) -> None:
    """Fill ``weights`` with the peer's. Raises ``StartFailed`` when it has others, is gone, or a bit differs."""
    with _group_of_two(rendezvous, rank, _RECEIVER, timeout) as (group, store):
        theirs = msgspec.json.decode(store.wait_for("weights"), type=list[_Entry])
        difference = _difference(theirs, _manifest(weights))
        store.set("answer", _AGREED if difference is None else difference.encode())
        if difference is not None:
            raise StartFailed(f"the peer has other weights: {difference}")
        total = 0
        for tensor in weights.values():
            flat = torch.empty(tensor.numel() * tensor.element_size(), dtype=torch.uint8)
            group.broadcast(flat, _SENDER).wait(timedelta(seconds=timeout))
            total = _summed(total, flat)
            with torch.no_grad():
                tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))
        sent = store.wait_for("sum").decode()
        store.set("done", b"yes")
        if sent != f"{total:016x}":
            raise StartFailed(f"the weights that came from the peer have the checksum {total:016x}, and its own {sent}")


class _Entry(msgspec.Struct, array_like=True, frozen=True):
    name: str
    dtype: str
    shape: tuple[int, ...]


def _manifest(weights: Mapping[str, torch.Tensor]) -> list[_Entry]:
    return [_Entry(name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in weights.items()]


def _difference(theirs: list[_Entry], ours: list[_Entry]) -> str | None:
    for one, other in zip(theirs, ours, strict=False):
        if one != other:
            here = f"{other.name} {other.dtype} {list(other.shape)}"
            return f"{one.name} is {one.dtype} {list(one.shape)}, and here {here}"
    return None if len(theirs) == len(ours) else f"{len(theirs)} tensors, and here {len(ours)}"


class _Store:
    """What both write for each other. Whoever waits looks whether the meeting place is still wanted."""

    def __init__(self, store: Any, place: Path, timeout: float) -> None:
        self._store = store
        self._place = place
        self._timeout = timeout

    def set(self, key: str, value: bytes | str) -> None:
        """Write."""
        self._store.set(key, value)

    def wait_for(self, key: str) -> bytes:
        """Read, once it is written. Raises ``StartFailed`` when the transfer was given up, or takes too long."""
        until = time.monotonic() + self._timeout
        while not self._store.check([key]):
            if not self._place.exists():
                raise StartFailed("the transfer of weights was given up by whoever had asked for it")
            if time.monotonic() > until:
                raise StartFailed(f"the peer said nothing for {self._timeout:g} s in the transfer of weights")
            time.sleep(_LOOK_SECONDS)
        return bytes(self._store.get(key))


@contextlib.contextmanager
def _group_of_two(rendezvous: str, rank: int, side: int, timeout: float) -> Iterator[tuple[Any, _Store]]:
    parts = urlsplit(rendezvous)
    if parts.scheme != "file" or not parts.path:
        raise StartFailed(f"'{rendezvous}' is no rendezvous of peers: it is file:///folder/name")
    place, limit = Path(unquote(parts.path)), timedelta(seconds=timeout)
    gloo = _DIST.ProcessGroupGloo
    try:
        store = _DIST.FileStore(f"{place}.{rank}", 2)
        store.set_timeout(limit)
        met = _Store(store, place, timeout)
        met.set(f"here {side}", b"yes")
        met.wait_for(f"here {1 - side}")
        options = gloo._Options()
        options._timeout = limit
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        group = gloo(_DIST.PrefixStore("group", store), side, 2, options)
        yield group, met
    except RuntimeError as error:  # what torch raises when the other is missing
        raise StartFailed(
            f"rank {rank} lost its peer in the transfer of weights: "
            + one_line(f"{type(error).__name__}: {error}", 300)
        ) from error


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _summed(total: int, flat: torch.Tensor) -> int:
    """``total`` carried on over these bytes: a sum of words, and one of words by their place, so that order counts."""
    whole = flat.numel() // 4 * 4
    words = flat[:whole].clone().view(torch.int32) if flat.storage_offset() % 4 else flat[:whole].view(torch.int32)
    for start in range(0, words.numel(), _WORDS_AT_ONCE):
        part = words[start : start + _WORDS_AT_ONCE].to(torch.int64)
        places = torch.arange(1, part.numel() + 1, dtype=torch.int64)
        total = (total * 31 + int(part.sum()) + 7 * int((part * places).sum())) % _MODULUS
    tail = int(flat[whole:].sum())
    return (total * 31 + tail) % _MODULUS
