"""A draw depends on its own logits, parameters, tokens and key, and breaks ties by the lowest id."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.messages import SamplingParams
from enginebay.worker.noise import draw_key, gumbel_noise
from enginebay.worker.sampling import Draw, draw_tokens
from support import numpy_sampling

VOCAB = 50
EOS = (4, 11)


def draw(seed: int = 0, position: int = 0, choice: int = 0, prompt: int = 0, **params: Any) -> Draw:
    """A row whose tokens are 0, 1, 2 …, of which the first ``prompt`` are the prompt."""
    return Draw(SamplingParams(**{"temperature": 1.0, **params}), range(position), prompt, seed, choice, EOS)


def rows(count: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * 2


ids = st.integers(0, VOCAB - 1)
draws = st.builds(
    draw,
    seed=st.integers(0, 2**64),
    position=st.integers(0, 60),
    choice=st.integers(0, 3),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 49, 50, 51]),
    min_p=st.sampled_from([0.0, 0.0, 0.013, 0.4, 1.0]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.7, 1.9]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -0.5, 1.5]),
    presence_penalty=st.sampled_from([0.0, 0.0, -1.0, 0.8]),
    logit_bias=st.just({}) | st.dictionaries(ids, st.floats(-5, 5), max_size=4),
    bad_words_token_ids=st.just(()) | st.lists(st.lists(ids, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    min_tokens=st.sampled_from([0, 0, 5]),
    stop_token_ids=st.sampled_from([(), (7, 30)]),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, 0, 3, 20]),
)


@given(st.lists(draws, min_size=1, max_size=8), st.randoms())
def test_a_draw_does_not_depend_on_the_batch_or_its_order(batch: list[Draw], random: Any) -> None:
    logits = rows(len(batch))
    before = logits.clone()
    together = draw_tokens(logits, batch)
    assert torch.equal(logits, before), "the logits were written to"
    alone = [draw_tokens(logits[i : i + 1], [one]) for i, one in enumerate(batch)]
    assert together.token_ids == [one.token_ids[0] for one in alone]
    assert together.logprobs == {i: one.logprobs[0] for i, one in enumerate(alone) if one.logprobs}
    order = list(range(len(batch)))
    random.shuffle(order)
    turned = draw_tokens(logits[order], [batch[i] for i in order])
    assert turned.token_ids == [together.token_ids[i] for i in order]
    assert turned.logprobs == {place: together.logprobs[i] for place, i in enumerate(order) if i in together.logprobs}


@settings(max_examples=300)
@given(draws, st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_it_is_what_the_definitions_say(one: Draw, prompt: int, seed: int) -> None:
    """Everything at once, in the fixed order, against numpy: the greedy token, or argmax with the keyed noise."""
    known = np.random.default_rng(seed).integers(0, VOCAB, len(one.token_ids)).tolist()
    prompt = min(prompt, len(known))
    one = replace(one, token_ids=known, num_prompt_tokens=prompt)
    logits = rows(1, seed=seed)
    raw, params = logits[0].double().tolist(), one.params
    scores = numpy_sampling.shaped(raw, params, known[:prompt], known[prompt:], EOS)
    if params.temperature > 0:
        scores = scores / params.temperature
        allowed = numpy_sampling.kept(scores.tolist(), params.top_k, params.min_p, params.top_p)
        noisy = np.full(VOCAB, -math.inf)
        noise = gumbel_noise(draw_key(one.seed, one.choice, len(known)), VOCAB)
        noisy[allowed] = (scores - scores.max() + noise)[allowed]
        scores = noisy
    drawn = draw_tokens(logits, [one])
    assert drawn.token_ids == [int(np.argmax(scores))]
    assert list(drawn.logprobs) == ([] if params.logprobs is None else [0])


@given(st.integers(0, 2**64), st.integers(0, 1000))
def test_it_is_argmax_of_logits_and_noise(seed: int, position: int) -> None:
    """torch draws what numpy draws, from the same float64 numbers."""
    logits = rows(1)
    scores = logits[0].double().numpy() / 0.7
    expected = int(np.argmax((scores - scores.max()) + gumbel_noise(draw_key(seed, 0, position), VOCAB)))
    assert draw_tokens(logits, [draw(seed, position, temperature=0.7)]).token_ids == [expected]


def test_scores_are_compared_in_double_precision() -> None:
    """A lead that 32 bits do not hold decides; and logits of 64 bits stay as they were."""
    logits = torch.zeros(1, 4, dtype=torch.float64)
    before = logits.clone()
    biased = draw(temperature=0.0, logit_bias={0: 1.0, 2: 1.0 + 1e-12}, logprobs=0)
    drawn = draw_tokens(logits, [biased])
    assert (drawn.token_ids, drawn.logprobs[0].logprob) == ([2], pytest.approx(-math.log(4)))
    assert torch.equal(logits, before), "the logits were written to"


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


def test_a_row_with_every_token_banned_is_its_own_fault() -> None:
    logits = rows(3, vocab=5)
    every = tuple((token,) for token in range(5))
    batch = [draw(0, 9, bad_words_token_ids=every), draw(0, 9), draw(0, 9, temperature=0.0, bad_words_token_ids=every)]
    drawn = draw_tokens(logits, batch)
    message = "no token is left for token 9: logit_bias, bad_words and min_tokens ban every one"
    assert drawn.faults == {0: message, 2: message}
    assert drawn.token_ids == [None, draw_tokens(logits[1:2], batch[1:2]).token_ids[0], None]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_numbers_that_overflow_are_the_rows_own_fault(temperature: float) -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0]] * 2)
    huge: dict[str, Any] = {"repetition_penalty": 1e-320, "temperature": temperature}
    batch = [draw(0, 3, **huge), draw(0, 3, temperature=temperature, logit_bias={2: -1.7e308}, frequency_penalty=2.0)]
    drawn = draw_tokens(logits, batch)
    assert drawn.faults == {
        0: "penalties and logit_bias make the logits for token 3 infinite: no token can be drawn",
    }
    assert drawn.token_ids[1] in (0, 1)


def test_a_fault_has_no_logprobs() -> None:
    logits = torch.full((1, 4), math.nan)
    assert draw_tokens(logits, [draw(logprobs=2)]).logprobs == {}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("generated", [0, 2, 3])
def test_min_tokens_masks_eos_and_stop_tokens(temperature: float, generated: int) -> None:  # S8
    """Until so many tokens are generated, and never a token longer; not even a bias lifts the mask."""
    logits = torch.zeros(1, VOCAB)
    logits[0, 4] = 1000.0  # eos
    logits[0, 30] = 500.0  # the stop token
    logits[0, 9] = 250.0

    def token(**params: Any) -> int | None:
        params |= {"temperature": temperature, "stop_token_ids": (30,), "min_tokens": 3}
        return draw_tokens(logits, [draw(1, 5 + generated, prompt=5, **params)]).token_ids[0]

    below = generated < 3
    assert token() == (9 if below else 4)
    assert token(logit_bias={4: 100.0, 30: 100.0}) == (9 if below else 4)
    assert token(ignore_eos=True) == 4  # ignored, not forbidden
    logits[0, 4] = 0.0
    assert token(ignore_eos=True) == (9 if below else 30)


def test_choices_repeat_and_differ() -> None:
    """The same seed gives the same choices again, and four choices of a request are four answers."""
    logits = rows(1).expand(4, -1)

    def answers(seed: int) -> list[tuple[int | None, ...]]:
        drawn = [draw_tokens(logits, [draw(seed, at, choice) for choice in range(4)]).token_ids for at in range(20)]
        return list(zip(*drawn, strict=True))

    assert answers(5) == answers(5)
    assert len({*answers(5), *answers(6)}) == 8


def test_an_empty_batch() -> None:
    assert draw_tokens(torch.zeros(0, 9), []).token_ids == []
