"""The filters keep what their definitions say, in the fixed order, with ties by the lowest id."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from enginebay.worker.filters import best_tokens, kept_tokens
from support.numpy_sampling import kept

grid = st.lists(st.sampled_from([-math.inf, -3.0, -1.5, -1.0, -0.25, 0.0]), min_size=1, max_size=60)
"""Many equal scores, so that ties stand on the border."""


@given(
    grid,
    st.sampled_from([0, 0, 1, 2, 5, 30, 70]),
    st.sampled_from([0.0, 0.0, 0.03, 0.11, 0.3, 0.5, 1.0]),
    st.sampled_from([0.03, 0.11, 0.37, 0.61, 0.93, 1.0]),
)
@example([-1.0, -0.25], 2, 0.5, 0.61)
def test_kept_tokens_equal_the_naive_reading(scores: list[float], top_k: int, min_p: float, top_p: float) -> None:
    scores = [*scores, 0.0]  # the largest score is 0, as the sampler makes it
    left = kept_tokens(torch.tensor(scores, dtype=torch.float64), top_k, min_p, top_p).tolist()
    assert left == kept(scores, top_k, min_p, top_p)


@pytest.mark.parametrize("spread", [0.001, 0.5, 6.0])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999])
def test_a_nucleus_of_a_large_vocabulary(spread: float, top_p: float) -> None:
    """Flat distributions reach beyond the first look at the best tokens; peaked ones end before it."""
    scores = torch.randn(5000, generator=torch.Generator().manual_seed(5)).double() * spread
    scores = scores - scores.max()
    assert kept_tokens(scores, top_p=top_p).tolist() == kept(scores.tolist(), top_p=top_p)


def test_each_filter_works_on_what_the_former_left() -> None:
    """Of 4, 2, 1, 1 and 1 parts of nine, top-k 3 leaves seven: 4 of 7 is less than 0.6, while 4 + 2 of 7 is more."""
    scores = torch.tensor([4.0, 2.0, 1.0, 1.0, 1.0], dtype=torch.float64).div(4).log()
    assert kept_tokens(scores, 3, 0.0, 0.56).tolist() == [0]  # 4 / 9 would not reach it
    assert kept_tokens(scores, 0, 0.0, 0.56).tolist() == [0, 1]
    assert kept_tokens(scores, 0, 0.4, 0.66).tolist() == [0]  # of 4 + 2 parts
    assert kept_tokens(scores, 0, 0.4, 0.67).tolist() == [0, 1]
    assert kept_tokens(scores, 4, 0.2, 1.0).tolist() == [0, 1, 2, 3]


def test_a_nucleus_ends_where_its_share_is_reached_exactly() -> None:
    equal = torch.zeros(4, dtype=torch.float64)
    assert kept_tokens(equal, top_p=0.25).tolist() == [0]
    assert kept_tokens(equal, top_p=0.5).tolist() == [0, 1]
    assert kept_tokens(equal, top_p=0.501).tolist() == [0, 1, 2]
    assert kept_tokens(equal, 2, 0.0, 0.5).tolist() == [0]


@given(grid, st.integers(1, 70))
def test_best_tokens_are_in_stable_order(scores: list[float], count: int) -> None:
    assert best_tokens(torch.tensor(scores), count).tolist() == kept(scores, top_k=count)
