"""The filters keep what their definitions say, in the fixed order, with ties by the lowest id."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from enginebay.messages import SamplingParams
from enginebay.worker.filters import NOBODY, best_first, kept_tokens
from enginebay.worker.random_draws import Chance, shortlists
from enginebay.worker.shortlists import Vocabulary, at_least_best, peaks_of
from support.numpy_sampling import kept

Filters = tuple[int, float, float]
grid = st.lists(st.sampled_from([-math.inf, -3.0, -1.5, -1.0, -0.25, 0.0]), min_size=1, max_size=60)
"""Many equal scores, so that ties stand on the border."""
filters = st.tuples(
    st.sampled_from([0, 0, 1, 2, 5, 30, 70]),
    st.sampled_from([0.0, 0.0, 0.03, 0.11, 0.3, 0.5, 1.0]),
    st.sampled_from([0.03, 0.11, 0.37, 0.61, 0.93, 1.0]),
)


def left_of(rows: Sequence[Sequence[float]], wanted: Sequence[Filters]) -> list[list[int]]:
    """Which ids are left of each row, best first, from whole vocabularies padded to one length."""
    width = max(map(len, rows))
    scores = np.array([[*row, *[-np.inf] * (width - len(row))] for row in rows])
    ids = np.array([[*range(len(row)), *[NOBODY] * (width - len(row))] for row in rows])
    scores, ids = best_first(scores, ids)
    top_k, min_p, top_p = (np.array(column) for column in zip(*wanted, strict=True))
    counts = kept_tokens(scores, ids, top_k, min_p, top_p, np.full(len(rows), np.nan))
    return [row[:count].tolist() for row, count in zip(ids, counts, strict=True)]


def by_shortlist(scores: Sequence[float], top_k: int = 0, min_p: float = 0.0, top_p: float = 1.0) -> list[int]:
    """The same, of the tokens that the row's shortlist has."""
    chance = Chance(0, SamplingParams(temperature=1.0, top_k=top_k, min_p=min_p, top_p=top_p))
    row = np.array([scores])
    (short,) = shortlists(row, np.zeros(1), row.argmax(axis=1), [chance])
    ordered, ids = best_first(short.scores[None], short.ids[None])
    wanted = (np.array([value]) for value in (top_k, min_p, top_p, short.total))
    (count,) = kept_tokens(ordered, ids, *wanted)
    found: list[int] = ids[0, :count].tolist()
    return found


def one(scores: Sequence[float], top_k: int = 0, min_p: float = 0.0, top_p: float = 1.0) -> list[int]:
    return left_of([scores], [(top_k, min_p, top_p)])[0]


@given(st.lists(st.tuples(grid, filters), min_size=1, max_size=5))
@example([([-1.0, -0.25], (2, 0.5, 0.61))])
def test_kept_tokens_equal_the_naive_reading(batch: list[tuple[list[float], Filters]]) -> None:
    """Each row beside others, of other lengths and with other filters."""
    rows = [[*scores, 0.0] for scores, _ in batch]  # the largest score is 0, as the sampler makes it
    expected = [kept(row, *wanted) for row, (_, wanted) in zip(rows, batch, strict=True)]
    assert left_of(rows, [wanted for _, wanted in batch]) == expected


@pytest.mark.parametrize("spread", [0.001, 0.5, 6.0])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999])
def test_a_nucleus_of_a_large_vocabulary(spread: float, top_p: float) -> None:
    """Flat distributions reach beyond the first look at the best tokens; peaked ones end before it."""
    scores = np.random.default_rng(5).normal(size=5000) * spread
    scores -= scores.max()
    assert by_shortlist(scores.tolist(), top_p=top_p) == kept(scores.tolist(), top_p=top_p)


def test_each_filter_works_on_what_the_former_left() -> None:
    """Of 4, 2, 1, 1 and 1 parts of nine, top-k 3 leaves seven: 4 of 7 is less than 0.6, while 4 + 2 of 7 is more."""
    scores = np.log(np.array([4.0, 2.0, 1.0, 1.0, 1.0]) / 4).tolist()
    assert one(scores, 3, 0.0, 0.56) == [0]  # 4 / 9 would not reach it
    assert one(scores, 0, 0.0, 0.56) == [0, 1]
    assert one(scores, 0, 0.4, 0.66) == [0]  # of 4 + 2 parts
    assert one(scores, 0, 0.4, 0.67) == [0, 1]
    assert one(scores, 4, 0.2, 1.0) == [0, 1, 2, 3]


def test_a_nucleus_ends_where_its_share_is_reached_exactly() -> None:
    equal = [0.0] * 4
    assert one(equal, top_p=0.25) == [0]
    assert one(equal, top_p=0.5) == [0, 1]
    assert one(equal, top_p=0.501) == [0, 1, 2]
    assert one(equal, 2, 0.0, 0.5) == [0]


@given(grid, filters)
def test_a_shortlist_has_what_the_filters_leave(scores: list[float], wanted: Filters) -> None:
    """Tokens that cannot come may be missing from it: they are drawn by nobody."""
    scores = [*scores, 0.0]
    top_k, min_p, top_p = wanted
    assume(0 < top_k < len(scores) or min_p > 0 or top_p < 1)
    possible = [token for token in kept(scores, *wanted) if scores[token] > -math.inf]
    assert [token for token in by_shortlist(scores, *wanted) if scores[token] > -math.inf] == possible


@given(st.integers(1, 500), st.integers(1, 600), st.integers(0, 2**32 - 1), st.sampled_from([1.0, 1e-30, 1e6]))
def test_the_best_are_among_those_found(size: int, count: int, seed: int, scale: float) -> None:
    """In single precision, where scores that differ may be equal once they are scaled."""
    scores = (np.random.default_rng(seed).integers(-20, 20, size) * scale).astype(np.float32)
    ids = at_least_best(Vocabulary(scores, peaks_of(scores[None])[0]), count, float(scores.max()) + 1.0)
    assert set(kept(scores.tolist(), top_k=count)) <= set(ids.tolist())
    assert (np.diff(ids) > 0).all()
