"""Drawn for all rows at once, the tokens are those of the plain sampler, row by row; so are the log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.messages import SamplingParams
from enginebay.worker.contenders import contenders
from enginebay.worker.masks import Mask
from enginebay.worker.noise import gumbel_noise
from enginebay.worker.sampling import Draw, Drawn, draw_tokens
from support import plain_sampling

EOS = (0, 9)
KINDS = ("spread", "grid", "flat", "peaked", "nearly zero", "with holes", "at fault")


def logits_of(kind: str, rows: int, vocab: int, seed: int) -> torch.Tensor:
    """Of several shapes: many equal ones, ones that differ in the last bits alone, ones that cannot come."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, vocab, generator=generator)
    if kind == "with holes":
        x[:, torch.rand(vocab, generator=generator) < 0.5] = -torch.inf
    if kind == "at fault":
        x[seed % rows, seed % vocab] = (torch.nan, torch.inf, -torch.inf)[seed % 3]
    scale = {"flat": 1e-3, "nearly zero": 1e-30}.get(kind, 3.0)
    return (x * scale).round() if kind == "grid" else x.pow(3) * 4 if kind == "peaked" else x * scale


def params_of(draw: Any, vocab: int) -> SamplingParams:
    def one_of(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    tokens = st.integers(0, vocab + 1)
    return SamplingParams(
        temperature=one_of(0.0, 0.3, 0.8, 1.0, 2.0, 50.0, 1e-8, 1e-300),
        top_k=one_of(0, 0, 0, 1, 3, 50, max(1, vocab - 1), vocab, vocab + 1),
        top_p=one_of(1.0, 1.0, 0.01, 0.5, 0.9, 0.95, 0.999, 0.9999999),
        min_p=one_of(0.0, 0.0, 0.0, 0.013, 0.4, 1.0, 1e-9),
        repetition_penalty=one_of(1.0, 1.0, 1.0, 0.7, 1.9),
        frequency_penalty=one_of(0.0, 0.0, 0.0, -0.5, 1.5),
        presence_penalty=one_of(0.0, 0.0, 0.0, -1.0, 0.8),
        logit_bias=draw(st.just({}) | st.dictionaries(tokens, st.floats(-5, 5), max_size=3)),
        bad_words_token_ids=draw(st.just(()) | st.lists(st.tuples(tokens), max_size=3).map(tuple)),
        min_tokens=one_of(0, 0, 0, 50),
        stop_token_ids=one_of((), (1,)),
        logprobs=one_of(None, None, 0, 3, 20),
    )


@st.composite
def batches(draw: Any, vocab: int | None = None) -> tuple[torch.Tensor, list[Draw], list[Mask | None]]:
    """Logits, draws and grammars' masks of a step."""
    rows, seed = draw(st.integers(1, 8)), draw(st.integers(0, 2**32 - 1))
    size = vocab or draw(st.sampled_from([1, 2, 5, 50, 64, 65, 199, 1000, 5000]))
    dtype = draw(st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float64]))
    random = np.random.default_rng(seed)
    draws: list[Draw] = []
    for _ in range(rows):
        known = random.integers(0, size + 2, random.integers(0, 40)).tolist()
        seed_of_row, prompt = int(random.integers(2**63)), int(random.integers(0, len(known) + 1))
        draws.append(Draw(params_of(draw, size), known, prompt, seed_of_row, int(random.integers(3)), EOS))
    masks: list[Mask | None] = [None] * rows
    if draw(st.booleans()):
        words = (size + 31) // 32 - int(random.integers(2))
        masks = [random.integers(0, 256, 4 * words).astype(np.uint8) if random.random() < 0.5 else None for _ in masks]
    return logits_of(draw(st.sampled_from(KINDS)), rows, size, seed).to(dtype), draws, masks


def check(logits: torch.Tensor, draws: list[Draw], masks: list[Mask | None], **how: Any) -> Drawn:
    before = logits.clone()
    drawn = draw_tokens(logits, draws, masks=masks, **how)
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)
    tokens = [plain_sampling.draw_row(*row) for row in zip(logits, draws, masks, strict=True)]
    assert drawn.token_ids == tokens
    assert sorted(drawn.faults) == [row for row, token in enumerate(tokens) if token is None]
    for row, (one, token) in enumerate(zip(draws, tokens, strict=True)):
        assert (row in drawn.logprobs) == (one.params.logprobs is not None and token is not None)
        if token is not None and one.params.logprobs is not None:
            told, expected = drawn.logprobs[row], plain_sampling.token_logprob(logits[row], token, one.params.logprobs)
            assert (told.token_id, told.rank) == (token, expected.rank)
            assert [neighbour for neighbour, _ in told.top] == [neighbour for neighbour, _ in expected.top]
            values = (
                [told.logprob, *(value for _, value in told.top)],
                [expected.logprob, *dict(expected.top).values()],
            )
            np.testing.assert_allclose(*values, rtol=1e-12, atol=1e-12)
    return drawn


@settings(max_examples=80, deadline=None)
@given(batches())
def test_the_tokens_are_those_of_the_plain_sampler(
    batch: tuple[torch.Tensor, list[Draw], list[Mask | None]],
) -> None:
    check(*batch)


@pytest.mark.soak
@settings(max_examples=3000, deadline=None)
@given(batches() | batches(49152))
def test_the_tokens_are_those_of_the_plain_sampler_over_many_batches(
    batch: tuple[torch.Tensor, list[Draw], list[Mask | None]],
) -> None:
    check(*batch)


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_vocabulary_is_no_other_matter(kind: str) -> None:
    """More rows than are computed on at once, each with other filters."""
    filters: list[dict[str, Any]] = [
        {},
        {"top_k": 50},
        {"top_p": 0.95},
        {"min_p": 0.05},
        {"top_k": 2000, "top_p": 0.9},
        {"min_p": 1e-4, "top_p": 0.7, "presence_penalty": 0.3},
        {"repetition_penalty": 1.2, "logit_bias": {40_000: 9.0}},
        {"top_k": 20, "logprobs": 5, "min_tokens": 9},
    ]
    logits = logits_of(kind, len(filters), 49152, 7)
    asked = [SamplingParams(temperature=0.9, **one) for one in filters]
    draws = [Draw(params, list(range(30)), 9, seed, 0, EOS) for seed, params in enumerate(asked)]
    check(logits, draws, [None] * len(draws))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS[:-1]), st.integers(0, 2**32 - 1), st.sampled_from([0.1, 0.7, 1.5, 30.0]))
def test_the_winner_is_among_the_contenders(kind: str, seed: int, temperature: float) -> None:
    """Whichever token bounds the others, and however the rows are put together."""
    random = np.random.default_rng(seed)
    scores = logits_of(kind, 4, 333, seed).nan_to_num(neginf=-np.inf).numpy()
    highest = scores.max(axis=1).astype(np.float64)
    keys = random.integers(0, 2**64, 4, dtype=np.uint64)
    noise = np.stack([gumbel_noise(int(key), 333) for key in keys])
    noisy = (scores - highest[:, None]) / temperature + noise
    bounding = scores.argmax(axis=1)
    bounds = np.exp(-noisy[np.arange(4), bounding])
    rows, ids = contenders(scores, highest, np.full(4, temperature), bounds, keys)
    assert sorted(zip(rows.tolist(), ids.tolist(), strict=True)) == list(zip(rows.tolist(), ids.tolist(), strict=True))
    for row in range(4):
        own = ids[rows == row]
        assert {int(bounding[row]), int(noisy[row].argmax())} <= set(own.tolist())
        alone = contenders(scores[row : row + 1], highest[[row]], np.full(1, temperature), bounds[[row]], keys[[row]])
        assert alone[1].tolist() == own.tolist()
        assert len(own) < 333 or temperature > 1 or kind in ("flat", "nearly zero"), "nobody was left out"
