"""Who has what: every index on one rank, every query head with its KV head, parts that differ by one at most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.worker.parallel.shares import HeadShare, TooManyRanks, aligned, even, head_shares, stages


@given(st.integers(1, 2000), st.integers(1, 16))
def test_parts_are_in_order_and_even(total: int, ranks: int) -> None:
    if total < ranks:
        for share in (even, stages, aligned):
            with pytest.raises(TooManyRanks, match=f"^{total} cannot be shared by {ranks} ranks$"):
                share(total, ranks)
        return
    for parts in (even(total, ranks), stages(total, ranks), aligned(total, ranks)):
        assert [index for part in parts for index in part] == list(range(total))
        assert min(map(len, parts)) > 0
    for parts in (even(total, ranks), stages(total, ranks)):
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert [len(part) for part in even(total, ranks)] == sorted(len(part) for part in even(total, ranks))
    assert [len(part) for part in stages(total, ranks)] == sorted((len(p) for p in stages(total, ranks)), reverse=True)


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 16))
def test_aligned_parts_begin_at_multiples(eights: int, ranks: int, other: int) -> None:
    if eights >= ranks:
        assert all(part.start % 8 == 0 for part in aligned(8 * eights, ranks))
    if other % 2 and 4 * other >= 8 * ranks:
        assert all(part.start % 4 == 0 for part in aligned(4 * other, ranks))


@given(st.integers(1, 8), st.integers(1, 12), st.integers(1, 16))
def test_every_head_is_on_one_rank_with_its_kv_head(group: int, kv_heads: int, ranks: int) -> None:
    heads = group * kv_heads
    try:
        shares = head_shares(heads, kv_heads, ranks)
    except TooManyRanks:
        assert kv_heads < ranks
        assert -(-ranks // kv_heads) > group, "a rank would have no query head"
        return
    assert [query for share in shares for query in share.queries] == list(range(heads))
    for share in shares:
        assert {query // group for query in share.queries} == set(share.kv), "what a query attends to is here"
        assert len(share.queries) % len(share.kv) == 0
        if kv_heads >= ranks:
            assert len(share.queries) == group * len(share.kv), "whole KV groups"
        else:
            assert len(share.kv) == 1, "no more of the cache than is attended to"
    held = {kv for share in shares for kv in share.kv}
    assert held == set(range(kv_heads))
    if kv_heads >= ranks:
        assert sum(len(share.kv) for share in shares) == kv_heads, "none twice"


def test_nine_heads_that_share_three() -> None:
    """SmolLM2-135M on two ranks: the later one has more, the first one also answers."""
    assert head_shares(9, 3, 2) == (HeadShare(range(3), range(1)), HeadShare(range(3, 9), range(1, 3)))


def test_more_ranks_than_kv_heads() -> None:
    assert head_shares(8, 2, 4) == (
        HeadShare(range(2), range(1)),
        HeadShare(range(2, 4), range(1)),
        HeadShare(range(4, 6), range(1, 2)),
        HeadShare(range(6, 8), range(1, 2)),
    )
    assert [len(share.queries) for share in head_shares(5, 1, 3)] == [1, 2, 2]


def test_the_last_stage_has_the_fewest_layers() -> None:
    assert stages(30, 4) == (range(8), range(8, 16), range(16, 23), range(23, 30))
