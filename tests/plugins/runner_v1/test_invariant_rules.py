"""The rule for rows is found from bits alone: by place, by size, by way; and a product without one is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay_runner_v1.invariant_rules import SIZES, NoRule, Rule, find_rule, in_words, places

ROWS = SIZES[-1] + 1


def products(kernel: Callable[[int, int, int], int]) -> Callable[[int, int], list[bytes]]:
    """A product whose kernel is chosen by (size, index in the piece, index in the input)."""
    return lambda begin, end: [b"%d by %d" % (row, kernel(end - begin, row - begin, row)) for row in range(begin, end)]


def found(kernel: Callable[[int, int, int], int], **others: Callable[[int, int, int], int]) -> Rule:
    ways = {"rows": products(kernel), **{name: products(other) for name, other in others.items()}}
    return find_rule(ways, SIZES, ROWS, 64)


def test_a_kernel_for_one_row_alone_is_left_out() -> None:
    assert found(lambda size, _at, _row: size == 1) == Rule("rows", SIZES[1:])


def test_all_sizes_where_one_kernel_does_it_all() -> None:
    assert found(lambda _size, _at, _row: 0) == Rule("rows", SIZES)


def test_multiples_of_four_below_twelve() -> None:
    rule = found(lambda size, _at, _row: size % 4 != 0 and size < 12)
    assert rule.sizes == SIZES[2:]
    assert [rule.pieces(rows)[0] for rows in (1, 3, 5, 9, 12)] == [4, 4, 8, 12, 12]


def test_sets_that_differ_are_never_mixed() -> None:
    rule = found(lambda size, _at, _row: 0 if size <= 16 or size >= 256 else 1)
    assert rule.sizes == (1, 2, 4, 8, 12, 16, 256, 512)
    assert rule.pieces(50) == (16, 16, 16, 2)


def test_a_kernel_for_the_last_rows_of_a_piece_is_noticed() -> None:
    rule = found(lambda size, at, _row: size % 8 != 0 and at >= size // 8 * 8)
    assert all(size % 8 == 0 for size in rule.sizes) or all(size < 8 for size in rule.sizes)


def test_the_way_with_more_sizes_wins_among_equals() -> None:
    rule = found(lambda size, _at, _row: size > 32, other=lambda size, _at, _row: size > 128)
    assert (rule.way, rule.sizes[-1]) == ("other", 128)


def test_where_every_size_differs_one_is_kept() -> None:
    rule = found(lambda size, _at, _row: size)
    assert rule == Rule("rows", (12,))
    assert rule.pieces(30) == (12, 12, 12)


def test_a_product_that_looks_at_the_place_has_no_rule() -> None:
    with pytest.raises(NoRule, match=r"^2 rows give other bits from place to place$"):
        found(lambda size, at, _row: at * 1000 + size)


@given(st.sets(st.sampled_from(SIZES), min_size=1), st.integers(1, 3000))
def test_pieces_take_all_rows_and_have_known_sizes(sizes: set[int], rows: int) -> None:
    rule = Rule("rows", tuple(sorted(sizes)))
    pieces = rule.pieces(rows)
    assert set(pieces) <= sizes
    assert sum(pieces) >= rows > sum(pieces[:-1])


@given(st.sampled_from(SIZES), st.integers(1, 600))
def test_each_size_is_seen_at_both_ends_and_often_enough(size: int, least: int) -> None:
    begins = places(size, ROWS, least)
    assert {0, ROWS - size} <= set(begins)
    assert len(begins) == len(set(begins))
    assert all(0 <= begin <= ROWS - size for begin in begins)
    seen = {row for begin in begins for row in range(begin, begin + size)}
    assert len(begins) * size >= least or len(seen) == ROWS


def test_in_words() -> None:
    assert in_words([Rule("rows", (2, 4, 8, 64)), Rule("columns", (2, 4, 8, 64))]) == "rows padded to 2, 4, 8 … 64"
    several = [Rule("rows", (1, 2)), Rule("rows", (8, 16)), Rule("rows", (1, 16))]
    assert in_words(several) == "rows padded by 3 rules, to 1 or 8 at least"
