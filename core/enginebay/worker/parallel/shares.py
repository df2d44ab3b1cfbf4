"""Which rank has what: pure arithmetic over counts. Every index once, heads with the KV head that they attend to."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

__all__ = ["HeadShare", "TooManyRanks", "aligned", "even", "head_shares", "stages"]

_UNITS = (8, 4, 1)
"""Numbers that a part is a multiple of, if it can be: 16 bytes, which some kernels need each row to begin at."""


class TooManyRanks(ValueError):
    """There are more ranks than things to share out."""


def even(total: int, ranks: int) -> tuple[range, ...]:
    """``range(total)`` in as many parts as ranks, in order, none larger than another by more than 1.

    The later ranks have the larger parts: the first one answers, and so has other work. Raises ``TooManyRanks``.
    """
    if total < ranks:
        raise TooManyRanks(f"{total} cannot be shared by {ranks} ranks")
    least, larger = divmod(total, ranks)
    begins = [rank * least + max(0, rank - (ranks - larger)) for rank in range(ranks + 1)]
    return tuple(range(begin, end) for begin, end in pairwise(begins))


def aligned(total: int, ranks: int) -> tuple[range, ...]:
    """``even`` in units of 8, or 4, where the total is made of as many as there are ranks."""
    unit = next(unit for unit in _UNITS if unit == 1 or (total % unit == 0 and total // unit >= ranks))
    return tuple(range(part.start * unit, part.stop * unit) for part in even(total // unit, ranks))


def stages(layers: int, ranks: int) -> tuple[range, ...]:
    """The layers of each stage, in order. The earlier stages have the larger parts: the last one has the head."""
    sizes = [len(part) for part in even(layers, ranks)][::-1]
    ends = [sum(sizes[: rank + 1]) for rank in range(ranks)]
    return tuple(range(end - size, end) for end, size in zip(ends, sizes, strict=True))


@dataclass(frozen=True, slots=True)
class HeadShare:
    """One rank's query heads, and the KV heads that they attend to."""

    queries: range
    kv: range


def head_shares(heads: int, kv_heads: int, ranks: int) -> tuple[HeadShare, ...]:
    """The heads of each rank, in order: by whole KV heads, each with all its query heads.

    With fewer KV heads than ranks, several ranks have the same one, and share its query heads. Raises
    ``TooManyRanks`` when a rank would have no query head.
    """
    assert heads % kv_heads == 0, "each KV head has as many query heads as another"
    group = heads // kv_heads
    if kv_heads >= ranks:
        return tuple(HeadShare(range(kv.start * group, kv.stop * group), kv) for kv in even(kv_heads, ranks))
    shares: list[HeadShare] = []
    for kv_head, holders in enumerate(even(ranks, kv_heads)):
        begin = kv_head * group
        shares += [
            HeadShare(range(begin + part.start, begin + part.stop), range(kv_head, kv_head + 1))
            for part in even(group, len(holders))
        ]
    return tuple(shares)
