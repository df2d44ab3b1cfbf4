"""Draws of the native kernels are those of numpy, or left to it: whatever the scores, the filters and the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from enginebay.messages import SamplingParams
from enginebay.worker.filters import NOBODY
from enginebay.worker.masks import Mask
from enginebay.worker.noise import gumbel_noise
from enginebay.worker.random_draws import Chance, settle, shortlists
from enginebay.worker.sampling import Draw, draw_tokens
from enginebay_runner_v2.drawing import native_draws
from support.kernel_kinds import ops

Scores = NDArray[Any]
KINDS = {
    "spread": 3.0,
    "peaked": 30.0,
    "flat": 1e-3,
    "wide": 1e5,
    "tiny": 1e-30,
    "grid": 3.0,
    "equal": 0.0,
    "holes": 3.0,
}


def scores_of(kind: str, rows: int, size: int, seed: int) -> Scores:
    """Of several shapes: many equal ones, ones that differ in the last bits alone, ones that cannot come."""
    scores = np.random.default_rng(seed).normal(size=(rows, size)) * KINDS[kind]
    if kind == "grid":
        scores = scores.round()
    if kind == "holes":
        scores[:, 1 + seed % 2 :: 3] = -np.inf
    return scores


temperatures = st.sampled_from([1e-300, 1e-30, 1e-6, 0.1, 0.8, 1.0, 2.0, 50.0, 1e9, 1e300])
filters = st.fixed_dictionaries(
    {},
    optional={
        "top_k": st.sampled_from([1, 3, 50, 63, 64, 700, 4096, 10**6]),
        "top_p": st.sampled_from([0.01, 0.5, 0.9, 0.95, 0.999, 0.9999999]),
        "min_p": st.sampled_from([1e-9, 0.013, 0.4, 1.0]),
    },
)
sizes = st.integers(1, 300) | st.integers(1020, 1030) | st.just(20_000)


def both(scores: Scores, rows: list[int], chances: list[Chance]) -> tuple[list[int], list[int]]:
    """What the kernels draw of these rows, and what numpy does."""
    best = scores.argmax(axis=1)[rows]
    highest = scores[rows, best].astype(np.float64)
    native = list(native_draws(scores, rows, highest, best, chances))
    return native, settle(shortlists(scores[rows], highest, best, chances))


@settings(max_examples=250, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)),
    sizes,
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(temperatures, filters), min_size=1, max_size=6),
    st.sampled_from([np.float32, np.float64]),
)
def test_a_token_is_that_of_numpy_or_none(
    kind: str, size: int, seed: int, asked: list[tuple[float, dict[str, Any]]], dtype: type[np.floating]
) -> None:
    random = np.random.default_rng(seed)
    scores = scores_of(kind, len(asked), size, seed).astype(dtype)
    rows = random.permutation(len(asked)).tolist()
    chances = [
        Chance(int(random.integers(0, 2**64, dtype=np.uint64)), SamplingParams(temperature=heat, **params))
        for heat, params in asked
    ]
    native, plain = both(scores, rows, chances)
    assert [mine if mine == NOBODY else right for mine, right in zip(native, plain, strict=True)] == native


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("heat", [0.1, 0.8, 1.5])
@pytest.mark.parametrize(
    "params",
    [{}, {"top_k": 50}, {"top_p": 0.95}, {"min_p": 0.05}, {"top_k": 40, "top_p": 0.9}, {"min_p": 0.01, "top_p": 0.9}],
    ids=str,
)
def test_of_a_model_s_vocabulary_hardly_anything_is_left_to_numpy(
    params: dict[str, Any], heat: float, dtype: type[np.floating]
) -> None:
    scores = scores_of("spread", 40, 49_152, 3).astype(dtype)
    chances = [Chance(97 * row, SamplingParams(temperature=heat, **params)) for row in range(40)]
    native, plain = both(scores, list(range(40)), chances)
    assert native.count(NOBODY) <= 1
    assert all(mine in (NOBODY, right) for mine, right in zip(native, plain, strict=True))


def test_what_rounding_may_decide_is_left_to_numpy() -> None:
    """Shares that reach ``top_p`` as exactly as can be, by either way of summing; two that weigh ``min_p``; heat that
    single precision does not hold."""
    equal, halved = np.zeros((1, 4)), np.array([[0.0, np.log(0.5), np.log(0.5), -np.inf]])
    asked: list[tuple[Scores, dict[str, Any]]] = [
        (equal, {"top_p": 0.5}),
        (equal, {"top_p": 0.5, "top_k": 2}),
        (halved, {"min_p": 0.5}),
        (halved, {"min_p": 0.5, "top_k": 3}),
        (equal, {"temperature": 1e-31}),
    ]
    for scores, params in asked:
        drawn = [
            both(scores, [0], [Chance(key, SamplingParams(**{"temperature": 1.0, **params}))]) for key in range(40)
        ]
        assert any(native == [NOBODY] for native, _ in drawn), params
        assert all(native in ([NOBODY], plain) for native, plain in drawn), params


def test_scores_that_are_equal_once_scaled_are_told_by_their_ids() -> None:
    """The last bit of a double is lost beside a far larger one, so the lower id comes first though it is below."""
    scores = np.array([[1e4, np.nextafter(1e-9, 0), 1e-9]])
    for key in range(60):
        native, plain = both(scores, [0], [Chance(key, SamplingParams(temperature=1e5, top_k=2))])
        assert native in ([NOBODY], plain)
        assert plain[0] in (0, 1)


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"top_k": 30}, {"min_p": 0.02}], ids=str)
def test_a_row_is_drawn_alone(params: dict[str, Any]) -> None:
    """In a batch of another size, and with another number of threads."""
    scores = scores_of("spread", 9, 5000, 5).astype(np.float32)
    chances = [Chance(31 * row, SamplingParams(temperature=0.9, **params)) for row in range(9)]
    torch.set_num_threads(2)
    together, _ = both(scores, list(range(9)), chances)
    torch.set_num_threads(1)
    assert NOBODY not in together
    assert together == [both(scores, [row], [chances[row]])[0][0] for row in range(9)]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.7, 1.3]), filters, st.booleans())
def test_whole_draws_are_those_without_kernels(seed: int, heat: float, params: dict[str, Any], single: bool) -> None:
    """With bias, penalties, bans and grammars, which make scores of 64 bits, and rows that are greedy or at fault."""
    random = np.random.default_rng(seed)
    logits = torch.from_numpy(scores_of("spread", 7, 1000, seed)).to(torch.float32 if single else torch.bfloat16)
    logits[6, 5] = torch.nan
    more: list[dict[str, Any]] = [
        {},
        {"logit_bias": {3: 2.5}},
        {"repetition_penalty": 1.3, "presence_penalty": 0.4},
        {"bad_words_token_ids": ((4,), (5,))},
        {"temperature": 0.0},
        {"logprobs": 3},
        {},
    ]
    known = random.integers(0, 1000, 50).tolist()
    asked = [SamplingParams(**{"temperature": heat, **params, **one}) for one in more]
    draws = [Draw(one, known, 9, seed + row, row % 3) for row, one in enumerate(asked)]
    masks: list[Mask | None] = [None] * 7
    masks[1] = masks[5] = random.integers(0, 256, 128).astype(np.uint8)
    drawn = draw_tokens(logits, draws, masks=masks, largest=ops.greedy, quick=native_draws)
    assert drawn == draw_tokens(logits, draws, masks=masks)
    assert list(drawn.faults) == [6]


def test_the_leader_by_noise_alone_is_drawn() -> None:
    """Against the definition, over a vocabulary of equal scores: no token has lost before its noise is looked at."""
    scores = np.zeros((1, 5000), np.float32)
    for key in range(30):
        native, _ = both(scores, [0], [Chance(key, SamplingParams(temperature=1.0))])
        assert native == [int(gumbel_noise(key, 5000).argmax())]


def test_what_does_not_fit_together_is_refused() -> None:
    scores, one = torch.zeros(2, 5), torch.ones(2, dtype=torch.float64)
    rows, zero = torch.arange(2), torch.zeros(2, dtype=torch.int64)
    good = [scores, rows, one, zero, zero, one, zero, one, one]
    assert len(ops.draws(*good)) == 2
    for place, bad, words in [
        (0, scores.half(), "float32 or float64"),
        (0, scores[0], "float32 or float64"),
        (1, rows + 1, "no row 2 of 2"),
        (2, one[:1], "largest scores"),
        (2, one.float(), "largest scores"),
        (3, zero - 1, "no token -1 of 5"),
        (3, zero + 5, "no token 5 of 5"),
        (4, zero.int(), "keys"),
        (5, one[:1], "temperatures"),
        (6, zero.int(), "top_k"),
        (7, one.float(), "min_p"),
        (8, one[:1], "top_p"),
    ]:
        with pytest.raises((RuntimeError, IndexError), match=words):
            ops.draws(*good[:place], bad, *good[place + 1 :])
