"""Penalties and masks are what a plain reading of their definitions gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.messages import SamplingParams
from enginebay.worker.masks import add_bias, ban, banned_tokens, wants_bans
from enginebay.worker.penalties import penalize, wants_penalties
from support import numpy_sampling

VOCAB = 12
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=30)
logits = st.lists(st.floats(-30, 30), min_size=VOCAB, max_size=VOCAB)
penalties = st.builds(
    SamplingParams,
    repetition_penalty=st.just(1.0) | st.floats(0.1, 5),
    frequency_penalty=st.just(0.0) | st.floats(-2, 2),
    presence_penalty=st.just(0.0) | st.floats(-2, 2),
)


@given(logits, penalties, tokens, tokens)
def test_penalties_equal_the_naive_reading(
    raw: list[float], params: SamplingParams, prompt: list[int], answer: list[int]
) -> None:
    scores = np.array(raw, dtype=np.float64)
    penalize(scores, params, [*prompt, *answer], len(prompt))
    np.testing.assert_allclose(scores, numpy_sampling.penalized(raw, params, prompt, answer), atol=1e-12)
    if not wants_penalties(params):
        assert scores.tolist() == raw


def penalized(raw: list[float], known: list[int], num_prompt_tokens: int, **params: Any) -> list[float]:
    scores = np.array(raw, dtype=np.float64)
    penalize(scores, SamplingParams(**params), known, num_prompt_tokens)
    return [float(score) for score in scores]


def test_what_each_penalty_counts() -> None:
    """Token 0 stands in the prompt, 1 in both, 2 three times in the answer, 3 nowhere."""
    known = [0, 1, 1, 2, 2, 2]
    assert penalized([6.0, -6.0, 0.0, 6.0], known, 2, repetition_penalty=2.0) == [3.0, -12.0, 0.0, 6.0]
    assert penalized([6.0] * 4, known, 2, frequency_penalty=0.5) == [6.0, 5.5, 4.5, 6.0]
    assert penalized([6.0] * 4, known, 2, presence_penalty=0.5) == [6.0, 5.5, 5.5, 6.0]
    assert penalized([6.0] * 4, [], 0, repetition_penalty=2.0, presence_penalty=1.0) == [6.0] * 4


def test_repetition_comes_before_frequency_and_presence() -> None:
    assert penalized([6.0], [0, 0], 0, repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25) == [1.75]


@given(tokens, tokens, st.lists(tokens.filter(bool).map(lambda word: tuple(word[:3])), max_size=5).map(tuple))
def test_bad_words_equal_the_naive_reading(
    prompt: list[int], answer: list[int], words: tuple[tuple[int, ...], ...]
) -> None:
    params = SamplingParams(bad_words_token_ids=words)
    found = set(banned_tokens(params, [*prompt, *answer], len(prompt), ()))
    assert found == numpy_sampling.banned(params, prompt, answer, ())
    assert wants_bans(params, len(answer)) or not found


@pytest.mark.parametrize(
    ("known", "expected"),
    [([], {9}), ([1], {9, 2}), ([1, 2], {9, 3}), ([5, 1, 2], {9, 3}), ([1, 2, 3], {9}), ([2, 1], {9, 2})],
)
@pytest.mark.parametrize("prompt", [0, 1, 2])
def test_a_bad_word_is_banned_when_its_beginning_stands_there(
    known: list[int], expected: set[int], prompt: int
) -> None:
    """Also when the prompt holds the beginning, or a part of it."""
    params = SamplingParams(bad_words_token_ids=((1, 2), (1, 2, 3), (9,), (8, 8)))
    assert set(banned_tokens(params, known, min(prompt, len(known)), (7,))) == expected


@given(st.integers(0, 5), st.integers(0, 5), st.booleans(), st.sampled_from([(), (3,), (3, 7)]))
def test_min_tokens_equal_the_naive_reading(
    generated: int, min_tokens: int, ignore_eos: bool, stop: tuple[int, ...]
) -> None:  # S8
    params = SamplingParams(min_tokens=min_tokens, ignore_eos=ignore_eos, stop_token_ids=stop)
    prompt, answer = [1, 2], [5] * generated
    found = set(banned_tokens(params, [*prompt, *answer], 2, (7, 8)))
    assert found == numpy_sampling.banned(params, prompt, answer, (7, 8))
    assert wants_bans(params, generated) == (generated < min_tokens)


def test_bias_and_bans_leave_ids_without_a_logit_alone() -> None:
    scores = np.array([1.0, 2.0, 3.0])
    add_bias(scores, {0: 0.5, 1: -math.inf, 3: 9.0, -1: 9.0})
    assert scores.tolist() == [1.5, -math.inf, 3.0]
    ban(scores, [0, 0, 3, -1])
    assert scores.tolist() == [-math.inf, -math.inf, 3.0]
    ban(scores, [])
    assert scores.tolist() == [-math.inf, -math.inf, 3.0]
