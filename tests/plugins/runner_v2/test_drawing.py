"""The native search for who may win a random draw finds the winner, and draws made with it are those made without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.messages import SamplingParams
from enginebay.worker.contenders import contenders
from enginebay.worker.noise import gumbel_noise
from enginebay.worker.sampling import Draw, draw_tokens
from enginebay_runner_v2.drawing import native_contenders
from support.kernel_kinds import ops


def scores_of(kind: str, rows: int, size: int, seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    scores = np.random.default_rng(seed).normal(size=(rows, size)) * {"flat": 1e-3, "wide": 1e5}.get(kind, 3.0)
    if kind == "with holes":
        scores[:, 1 + seed % 2 :: 3] = -np.inf
    return scores.astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["spread", "flat", "wide", "with holes"]),
    st.integers(1, 5),
    st.integers(1, 300) | st.integers(4090, 4100) | st.just(20_000),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-300, 1e-6, 0.1, 0.8, 2.0, 1e9]),
    st.sampled_from([np.float32, np.float64]),
)
def test_it_finds_what_the_plain_search_finds(
    kind: str, rows: int, size: int, seed: int, temperature: float, dtype: type[np.floating]
) -> None:
    """Rounding may let another token in, near the bound; whoever may win is among them, in rising order."""
    scores, random = scores_of(kind, rows, size, seed).astype(dtype), np.random.default_rng(seed)
    best = scores.argmax(axis=1)
    highest = scores[np.arange(rows), best].astype(np.float64)
    keys = random.integers(0, 2**64, rows, dtype=np.uint64)
    bounds = np.exp(-gumbel_noise(keys, best.astype(np.uint64)))
    given = scores, highest, np.full(rows, temperature), bounds, keys
    found = list(zip(*(part.tolist() for part in native_contenders(*given)), strict=True))
    assert found == sorted(set(found))
    with np.errstate(over="ignore"):
        noisy = (scores.astype(np.float64) - highest[:, None]) / temperature
    noisy += np.stack([gumbel_noise(int(key), size) for key in keys])
    can_win = np.nonzero(noisy >= noisy[np.arange(rows), best][:, None])
    assert set(zip(*(part.tolist() for part in can_win), strict=True)) <= set(found)
    if temperature > 1e-9:  # below it, scores that differ are told apart by the plain search alone
        plain = set(zip(*(part.tolist() for part in contenders(*given)), strict=True))
        assert len(plain.symmetric_difference(found)) <= 2 + len(plain) // 50


def test_a_row_is_searched_alone() -> None:
    """In a batch of another size, and with another number of threads."""
    scores = scores_of("spread", 6, 49_152, 3)
    keys = np.arange(6, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    highest, heats, bounds = scores.max(axis=1).astype(np.float64), np.full(6, 0.9), np.full(6, 0.7)
    torch.set_num_threads(2)
    rows, ids = native_contenders(scores, highest, heats, bounds, keys)
    torch.set_num_threads(1)
    assert len(ids) > 6
    for row in range(6):
        one = slice(row, row + 1)
        alone = native_contenders(scores[one], highest[one], heats[one], bounds[one], keys[one])
        assert alone[1].tolist() == ids[rows == row].tolist()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.7, 1.3]), st.sampled_from([{}, {3: 2.5}]))
def test_the_tokens_are_those_of_the_plain_search(seed: int, temperature: float, bias: dict[int, float]) -> None:
    logits = torch.from_numpy(scores_of("spread", 4, 1000, seed))
    params = SamplingParams(temperature=temperature, logit_bias=bias)
    draws = [Draw(params, [1, 2], 1, seed + row) for row in range(4)]
    drawn = draw_tokens(logits, draws, largest=ops.greedy, contenders=native_contenders)
    assert drawn == draw_tokens(logits, draws)


def test_what_does_not_fit_together_is_refused() -> None:
    scores, one, key = torch.zeros(2, 5), torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    for given_ones in [
        (scores.double(), one, one, one, key),
        (scores[0], one, one, one, key),
        (scores, one[:1], one, one, key),
        (scores, one, one.float(), one, key),
        (scores, one, one, one, key[:1]),
    ]:
        with pytest.raises(RuntimeError, match="contenders takes"):
            ops.contenders(*given_ones)
    rows, ids = ops.contenders(scores[:, :0], one, one, one, key)
    assert rows.shape == ids.shape == (0,)
