"""Log-probabilities are those of the logits as they came, with ranks and neighbours in stable order."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enginebay.messages import SamplingParams, TokenLogprob
from enginebay.worker.logprobs import token_logprobs, unusable
from enginebay.worker.sampling import Draw, draw_tokens
from support.numpy_sampling import kept, log_softmax

values = st.lists(st.sampled_from([-9.0, -1.5, 0.0, 0.5, 12.0]) | st.floats(-50, 50, width=16), min_size=1, max_size=40)


@given(values, st.data(), st.integers(0, 20), st.sampled_from([torch.float64, torch.float32, torch.float16]))
def test_entries_equal_the_naive_reading(
    logits: list[float], data: st.DataObject, top: int, dtype: torch.dtype
) -> None:
    token = data.draw(st.integers(0, len(logits) - 1))
    (entry,) = token_logprobs(torch.tensor([logits], dtype=dtype), [token], top)
    expected, order = log_softmax(logits), kept(logits)
    assert entry.token_id == token
    assert entry.rank == order.index(token) + 1
    assert entry.logprob == pytest.approx(expected[token], abs=1e-12)
    assert [neighbour for neighbour, _ in entry.top] == order[:top]
    assert [value for _, value in entry.top] == pytest.approx(expected[order[:top]].tolist(), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_they_are_of_the_raw_distribution(dtype: torch.dtype) -> None:
    """Neither penalties nor bias, bans, temperature or filters show in them."""
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(1)).to(dtype)
    everything: dict[str, Any] = {
        "temperature": 0.7,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "frequency_penalty": 1.0,
        "presence_penalty": 1.0,
        "logit_bias": {5: 80.0},
        "bad_words_token_ids": ((int(logits.argmax()),),),
        "min_tokens": 9,
    }
    drawn = draw_tokens(logits, [Draw(SamplingParams(logprobs=4, **everything), [3, 4], 1, eos_token_ids=(2,))])
    assert drawn.token_ids == [5]
    assert drawn.logprobs == {0: token_logprobs(logits, [5], 4)[0]}
    assert drawn.logprobs[0].top[0][0] == int(logits.argmax())
    assert drawn.logprobs[0].logprob == pytest.approx(float(logits[0].double().log_softmax(-1)[5]), abs=1e-12)


def test_none_are_made_for_rows_that_did_not_ask() -> None:
    params = [SamplingParams(), SamplingParams(logprobs=0), SamplingParams(logprobs=2)]
    drawn = draw_tokens(torch.eye(3), [Draw(one, (), 0) for one in params])
    assert drawn.token_ids == [0, 1, 2]
    assert {row: len(entry.top) for row, entry in drawn.logprobs.items()} == {1: 0, 2: 2}


def test_a_token_that_cannot_come_has_none() -> None:
    assert token_logprobs(torch.tensor([[0.0, -math.inf]]), [1], 2) == [
        TokenLogprob(token_id=1, logprob=-math.inf, rank=2, top=((0, 0.0), (1, -math.inf)))
    ]


def test_what_is_unusable_is_named() -> None:
    assert [unusable(peak) for peak in (math.nan, math.inf, -math.inf, -3.0, 0.0)] == [
        "NaN",
        "infinite",
        "all minus infinity",
        None,
        None,
    ]
