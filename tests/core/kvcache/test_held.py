"""The blocks that a long request holds, as docs/kv-cache.md has them."""

from __future__ import annotations

import re

import pytest

from enginebay.kvcache import GroupSpec, KVCacheManager, PrefixHit
from support.repository import ROOT

SIZE, CHUNK, DECODED = 16, 256, 64
FULL, FAR, NEAR = GroupSpec(SIZE), GroupSpec(SIZE, "sliding_window", 4096), GroupSpec(SIZE, "sliding_window", 128)


def held(groups: tuple[GroupSpec, ...], length: int) -> int:
    kv = KVCacheManager(num_blocks=5000, block_size=SIZE, groups=groups, prefix_caching=False)
    sequence = kv.open("a", tuple(range(length - DECODED)), [])
    assert kv.allocate(sequence, PrefixHit(), 1)
    computed = 0
    while computed < length:
        computed += min(CHUNK, length - DECODED - computed) if computed < length - DECODED else 1
        assert kv.extend(sequence, computed) is not None
        kv.trim(sequence, computed)
    return kv.num_blocks - kv.num_free_blocks


@pytest.mark.parametrize(
    ("row", "groups"),
    [
        ("all alike, without a window", (FULL,)),
        ("all with a window of 4,096", (FAR,)),
        ("half without, half with 4,096, in blocks of half the layers", (FULL, FAR)),
        ("half without, half with 128, in blocks of half the layers", (FULL, NEAR)),
        ("either half, were windows not told apart", (FULL, FULL)),
    ],
)
def test_the_documented_numbers(row: str, groups: tuple[GroupSpec, ...]) -> None:
    text = (ROOT / "docs/kv-cache.md").read_text("utf-8")
    found = re.search(rf"^\| {re.escape(row)} \| (.*) \|$", text, re.MULTILINE)
    assert found is not None
    assert [int(cell.replace(",", "")) for cell in found[1].split(" | ")] == [
        held(groups, length) for length in (1024, 8192, 32768)
    ]
