"""A draw depends on its own logits, parameters and key, is distributed as it says, and breaks ties by the lowest id."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enginebay.messages import SamplingParams
from enginebay.worker.noise import draw_key, gumbel_noise
from enginebay.worker.sampling import Draw, draw_tokens, kept_tokens

VOCAB = 50


def draw(seed: int = 0, position: int = 0, choice: int = 0, **params: Any) -> Draw:
    return Draw(SamplingParams(**{"temperature": 1.0, **params}), seed, choice, position)


def rows(count: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * 2


draws = st.builds(
    draw,
    seed=st.integers(0, 2**64),
    position=st.integers(0, 1000),
    choice=st.integers(0, 3),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 49, 50, 51]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 1.0]),
)


@given(st.lists(draws, min_size=1, max_size=8), st.randoms())
def test_a_draw_does_not_depend_on_the_batch_or_its_order(batch: list[Draw], random: Any) -> None:
    logits = rows(len(batch))
    together = draw_tokens(logits, batch).token_ids
    alone = [draw_tokens(logits[i : i + 1], [one]).token_ids[0] for i, one in enumerate(batch)]
    assert together == alone
    order = list(range(len(batch)))
    random.shuffle(order)
    assert draw_tokens(logits[order], [batch[i] for i in order]).token_ids == [together[i] for i in order]


@given(st.integers(0, 2**64), st.integers(0, 1000))
def test_it_is_argmax_of_logits_and_noise(seed: int, position: int) -> None:
    """torch draws what numpy draws, from the same float64 numbers."""
    logits = rows(1)
    scores = logits[0].double().numpy() / 0.7
    expected = int(np.argmax((scores - scores.max()) + gumbel_noise(draw_key(seed, 0, position), VOCAB)))
    assert draw_tokens(logits, [draw(seed, position, temperature=0.7)]).token_ids == [expected]


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    logits = torch.zeros(3, 40)
    logits[0, [7, 9, 30]] = 5.0
    logits[1, [39, 38]] = 1.0
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert draw_tokens(logits.to(dtype), [draw(temperature=0.0)] * 3).token_ids == [7, 38, 0]


@pytest.mark.parametrize("temperature", [1e-30, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = rows(20)
    assert draw_tokens(logits, [draw(i, temperature=temperature) for i in range(20)]).token_ids == (
        logits.argmax(-1).tolist()
    )


def chi_square(logits: torch.Tensor, probabilities: torch.Tensor, count: int, **params: Any) -> tuple[float, int]:
    """The statistic of ``count`` draws at positions 0, 1, 2 …, and its degrees of freedom."""
    drawn = draw_tokens(logits.expand(count, -1), [draw(11, i, **params) for i in range(count)]).token_ids
    seen = torch.bincount(torch.tensor(drawn), minlength=len(probabilities)).double()
    expected = probabilities.double() * count
    assert (seen[expected == 0] == 0).all(), "a token that may not be drawn was drawn"
    possible = expected > 0
    return float(((seen - expected)[possible] ** 2 / expected[possible]).sum()), int(possible.sum()) - 1


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.5}, {"temperature": 3.0}, {"top_k": 5}, {"top_p": 0.8}, {"top_k": 8, "top_p": 0.7}]
)
def test_the_distribution_is_right(params: dict[str, Any]) -> None:
    logits = rows(1, vocab=12, seed=3)[0]
    scaled = logits.double() / params.get("temperature", 1.0)
    allowed = naive_kept(scaled.tolist(), params.get("top_k", 0), params.get("top_p", 1.0))
    mask = torch.full((12,), -math.inf, dtype=torch.float64)
    mask[allowed] = 0.0
    statistic, freedom = chi_square(logits, torch.softmax(scaled + mask, 0), 6000, **params)
    # mean + 4 standard deviations of chi-square: wrong by chance less than once in a thousand; the seed is fixed
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def test_the_chi_square_test_can_fail() -> None:
    logits = rows(1, vocab=12, seed=3)[0]
    statistic, freedom = chi_square(logits, torch.softmax(logits / 1.2, 0), 6000)
    assert statistic > freedom + 4 * math.sqrt(2 * freedom)


def naive_kept(scores: list[float], top_k: int, top_p: float) -> list[int]:
    """Which ids may be drawn, best first, read off the definition."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    if top_k > 0:
        order = order[:top_k]
    if top_p >= 1.0:
        return order
    weights = [math.exp(scores[i] - max(scores)) for i in order]
    kept, reached = [], 0.0
    for i, weight in zip(order, weights, strict=True):
        if kept and reached >= top_p:
            break
        kept.append(i)
        reached += weight / sum(weights)
    return kept


@given(
    st.lists(st.sampled_from([-math.inf, -3.0, -1.5, -1.0, -0.25, 0.0]), min_size=1, max_size=60),
    st.integers(0, 70),
    st.sampled_from([0.03, 0.11, 0.37, 0.61, 0.93, 1.0]),
)
def test_kept_tokens_equal_the_naive_reading(scores: list[float], top_k: int, top_p: float) -> None:
    """Many equal scores, so that ties stand on the border."""
    scores = [*scores, 0.0]  # the largest score is 0, as the sampler makes it
    kept = kept_tokens(torch.tensor(scores, dtype=torch.float64), top_k, top_p).tolist()
    assert kept == naive_kept(scores, top_k, top_p)


@pytest.mark.parametrize("spread", [0.001, 0.5, 6.0])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999])
def test_a_nucleus_of_a_large_vocabulary(spread: float, top_p: float) -> None:
    """Flat distributions reach beyond the first look at the best tokens; peaked ones end before it."""
    scores = rows(1, vocab=5000, seed=5)[0].double() * spread
    scores = scores - scores.max()
    assert kept_tokens(scores, 0, top_p).tolist() == naive_kept(scores.tolist(), 0, top_p)


def test_faults_are_the_rows_own() -> None:
    logits = rows(5)
    logits[0, 3] = math.nan
    logits[2, 4] = math.inf
    logits[3] = -math.inf
    logits[4, 7] = -math.inf
    batch = [draw(1, 10, temperature=0.0), draw(1, 11), draw(1, 12), draw(1, 13, temperature=0.0), draw(1, 14)]
    drawn = draw_tokens(logits, batch)
    assert [token is None for token in drawn.token_ids] == [True, False, True, True, False]
    assert drawn.faults == {
        0: "the model's logits for token 10 are NaN: no token can be drawn",
        2: "the model's logits for token 12 are infinite: no token can be drawn",
        3: "the model's logits for token 13 are all minus infinity: no token can be drawn",
    }
    assert drawn.token_ids[1] == draw_tokens(logits[1:2], batch[1:2]).token_ids[0]


def test_an_empty_batch() -> None:
    assert draw_tokens(torch.zeros(0, 9), []).token_ids == []
