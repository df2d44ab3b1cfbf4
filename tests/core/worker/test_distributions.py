"""How often tokens come is what the parameters say: chi-square over 20,000 draws, each with a key of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from enginebay.messages import SamplingParams
from enginebay.worker.sampling import Draw, draw_tokens
from support import numpy_sampling

DRAWS = 20_000
LOGITS = [1.2, 0.1, -0.4, 1.9, -1.3, 0.8, 0.3, -0.2]
PROMPT_TOKEN, ANSWER, EOS = 7, [2, 2, 5], (3,)
LEAST = 0.001
"""The p-value below which a distribution is rejected. The keys are fixed, so the verdict is always the same."""


def draw(number: int, params: SamplingParams) -> Draw:
    """Seeds, choices and positions all vary: two choices each of 125 seeds, at 80 positions."""
    place, choice = divmod(number, 2)
    seed, length = divmod(place, 80)
    known = [*[PROMPT_TOKEN] * (length + 1), *ANSWER]
    return Draw(params, known, length + 1, seed, choice, EOS)


def draws(**changes: Any) -> list[int]:
    params = SamplingParams(**{"temperature": 1.0, **changes})
    tokens = draw_tokens(torch.tensor(LOGITS).expand(DRAWS, -1), [draw(i, params) for i in range(DRAWS)]).token_ids
    return [token for token in tokens if token is not None]


def p_value(tokens: Sequence[int], probabilities: Sequence[float]) -> float:
    """How likely a deviation at least as large as that of these tokens is (the survival function of chi-square)."""
    seen = np.bincount(tokens, minlength=len(probabilities))
    expected = np.asarray(probabilities) * len(tokens)
    assert (seen[expected == 0] == 0).all(), "a token that may not be drawn was drawn"
    possible = expected > 0
    statistic = float(((seen - expected)[possible] ** 2 / expected[possible]).sum())
    freedom = int(possible.sum()) - 1
    return float(torch.special.gammaincc(torch.tensor(freedom / 2).double(), torch.tensor(statistic / 2).double()))


def expected(**changes: Any) -> list[float]:
    params = SamplingParams(**{"temperature": 1.0, **changes})
    scores = numpy_sampling.shaped(LOGITS, params, [PROMPT_TOKEN], ANSWER, EOS)
    probabilities: list[float] = numpy_sampling.probabilities(scores.tolist(), params).tolist()
    return probabilities


@pytest.fixture(scope="module")
def plain() -> list[int]:
    return draws()


def test_plain(plain: list[int]) -> None:
    assert p_value(plain, expected()) > LEAST


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.5},
        {"top_k": 5},
        {"min_p": 0.25},
        {"top_p": 0.8},
        {"top_k": 6, "min_p": 0.12, "top_p": 0.85, "temperature": 1.3},
        {"repetition_penalty": 1.4, "frequency_penalty": 0.3, "presence_penalty": 0.2},
        {"logit_bias": {4: 2.0, 0: -1.0}, "bad_words_token_ids": ((2, 5, 6), (1,)), "min_tokens": 5, "top_p": 0.95},
    ],
    ids=str,
)
def test_with(params: dict[str, Any], plain: list[int]) -> None:
    assert p_value(draws(**params), expected(**params)) > LEAST
    if all(probability > 0 for probability in expected(**params)):
        assert p_value(plain, expected(**params)) < LEAST, "the test does not see the difference"


def test_choices_of_a_seed_are_independent(plain: list[int]) -> None:
    pairs = [first * len(LOGITS) + second for first, second in zip(plain[::2], plain[1::2], strict=True)]
    assert p_value(pairs, np.outer(expected(), expected()).ravel().tolist()) > LEAST


@pytest.mark.parametrize("wrong", [{"temperature": 1.05}, {"logit_bias": {0: 0.1}}, {"presence_penalty": 0.1}], ids=str)
def test_a_wrong_distribution_is_rejected(wrong: dict[str, Any], plain: list[int]) -> None:
    assert p_value(plain, expected(**wrong)) < LEAST
