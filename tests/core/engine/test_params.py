"""Every sampling parameter: what is refused, in which words; what a runner must declare; what is made of the rest."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.admission.admit import AdmissionLimits, Ask, check_size, validate
from enginebay.errors import InvalidRequest, RequestTooLong
from enginebay.messages import SamplingParams, StructuredOutput
from support.fake_engine import FEATURES

LIMITS = AdmissionLimits(
    vocab_size=300,
    runner="runner 'fake' 1.0",
    features=FEATURES,
    check_fits=lambda prompt, most: None,
    max_model_len=1000,
    bad_word_ids=lambda word: (tuple(word.encode()), tuple(f" {word}".encode())),
)


def passed(limits: AdmissionLimits = LIMITS, prompt: tuple[int, ...] = (1, 2, 3), **params: Any) -> Ask:
    return validate(Ask(request_id="r", prompt_token_ids=prompt, params=SamplingParams(**params)), limits)


def refused(limits: AdmissionLimits = LIMITS, **params: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        passed(limits, **params)
    return caught.value


def test_all_at_their_limits_pass() -> None:
    passed(
        temperature=2.0,
        min_p=1.0,
        n=16,
        repetition_penalty=1e-30,
        presence_penalty=-2,
        frequency_penalty=2.0,
        logit_bias=dict.fromkeys(range(300), -1e9),
        bad_words=("x" * 31,) * 128,
        bad_words_token_ids=[[1], (2, 3)],
        min_tokens=256,
        truncate_prompt_tokens=1,
        logprobs=20,
        prompt_logprobs=0,
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"min_p": -0.1}, "min_p must be a number from 0 to 1, not -0.1"),
        ({"min_p": math.nan}, "min_p must be a number from 0 to 1, not nan"),
        ({"min_p": None}, "min_p must be a number from 0 to 1, not None"),
        ({"n": 0}, "n must be an integer from 1 to 16, not 0"),
        ({"n": 17, "temperature": 1}, "n must be an integer from 1 to 16, not 17"),
        ({"n": True}, "n must be an integer from 1 to 16, not True"),
        ({"n": 2}, "n is 2 with temperature 0, where all choices are equal: set temperature above 0, or n to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty must be above 0 (1 is none, above 1 discourages), not 0.0"),
        ({"repetition_penalty": -1}, "repetition_penalty must be above 0 (1 is none, above 1 discourages), not -1.0"),
        (
            {"repetition_penalty": 1e39},
            "repetition_penalty must be above 0 (1 is none, above 1 discourages), not 1e+39",
        ),
        (
            {"repetition_penalty": math.inf},
            "repetition_penalty must be above 0 (1 is none, above 1 discourages), not inf",
        ),
        ({"presence_penalty": 2.1}, "presence_penalty must be a number from -2 to 2, not 2.1"),
        ({"presence_penalty": "1"}, "presence_penalty must be a number from -2 to 2, not '1'"),
        ({"frequency_penalty": -3}, "frequency_penalty must be a number from -2 to 2, not -3.0"),
        ({"frequency_penalty": math.nan}, "frequency_penalty must be a number from -2 to 2, not nan"),
        ({"logit_bias": [1]}, "logit_bias must be a dict of numbers by token id, not tuple"),
        ({"logit_bias": {300: 1}}, "logit_bias token 300 is outside the model's vocabulary (0 to 299)"),
        ({"logit_bias": {"7": 1}}, "logit_bias token '7' is outside the model's vocabulary (0 to 299)"),
        ({"logit_bias": {True: 1}}, "logit_bias token True is outside the model's vocabulary (0 to 299)"),
        ({"logit_bias": {7: math.nan}}, "logit_bias of token 7 must be a finite number (32 bits), not nan"),
        ({"logit_bias": {7: 1e39}}, "logit_bias of token 7 must be a finite number (32 bits), not 1e+39"),
        ({"logit_bias": {7: None}}, "logit_bias of token 7 must be a finite number (32 bits), not None"),
        ({"bad_words": "a"}, "bad_words must be a tuple, not str"),
        ({"bad_words": ("",)}, "bad words must be non-empty strings, not ''"),
        ({"bad_words": (7,)}, "bad words must be non-empty strings, not 7"),
        (
            {"bad_words": ("\ud800",)},
            "bad_words has a lone surrogate at character 0 ('\\ud800'): it is no Unicode text",
        ),
        ({"bad_words": ("x" * 257,)}, "a bad word has 257 characters; at most 256 are allowed"),
        ({"bad_words": ("x",) * 129}, "bad_words has 129 strings; at most 128 are allowed"),
        (
            {"bad_words": tuple(f"{i:0>100}" for i in range(30))},
            "the bad words have 6030 tokens in all; at most 4096 are allowed",
        ),
        ({"bad_words_token_ids": ((1,) * 4097,)}, "the bad words have 4097 tokens in all; at most 4096 are allowed"),
        ({"bad_words_token_ids": (1, 2)}, "bad_words_token_ids must hold tuples of token ids, not 1"),
        ({"bad_words_token_ids": ((),)}, "bad_words_token_ids must hold tuples of token ids, not ()"),
        ({"bad_words_token_ids": ((300,),)}, "bad word token 300 is outside the model's vocabulary (0 to 299)"),
        ({"bad_words_token_ids": (((1,),),)}, "bad word token (1,) is outside the model's vocabulary (0 to 299)"),
        ({"bad_words_token_ids": 7}, "bad_words_token_ids must be a tuple, not int"),
        ({"min_tokens": -1}, "min_tokens must be an integer, 0 or more, not -1"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens is 5, and max_tokens 4: it can be no more"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens must be an integer, 1 or more, not 0"),
        ({"truncate_prompt_tokens": 1.5}, "truncate_prompt_tokens must be an integer, 1 or more, not 1.5"),
        ({"logprobs": 21}, "logprobs must be an integer from 0 to 20, not 21"),
        ({"logprobs": True}, "logprobs must be an integer from 0 to 20, not True"),
        ({"prompt_logprobs": -1}, "prompt_logprobs must be an integer from 0 to 20, not -1"),
        ({"prompt_logprobs": 2**64}, "prompt_logprobs must be an integer from 0 to 20, not 18446744073709551616"),
    ],
)
def test_parameters_that_are_refused(params: dict[str, Any], message: str) -> None:  # E4
    error = refused(**params)
    assert str(error) == message
    assert error.param in (*params, "bad_words")


def test_too_many_biases() -> None:
    limits = dataclasses.replace(LIMITS, vocab_size=5000)
    error = refused(limits, logit_bias=dict.fromkeys(range(1025), 0.5))
    assert str(error) == "logit_bias has 1025 token ids; at most 1024 are allowed"


WISHES: dict[str, tuple[str, Any]] = {
    "top_k": ("top_k", 3),
    "top_p": ("top_p", 0.5),
    "min_p": ("min_p", 0.1),
    "seed": ("seed", 1),
    "n": ("n", 2),
    "repetition_penalty": ("penalties", 1.1),
    "presence_penalty": ("penalties", 0.1),
    "frequency_penalty": ("penalties", -0.1),
    "logit_bias": ("logit_bias", {1: 1}),
    "bad_words": ("bad_words", ("x",)),
    "bad_words_token_ids": ("bad_words", ((1,),)),
    "min_tokens": ("min_tokens", 1),
    "logprobs": ("logprobs", 0),
    "prompt_logprobs": ("prompt_logprobs", 0),
    "structured": ("grammar", StructuredOutput(regex="a")),
}
EVERYWHERE = {
    "max_tokens",
    "temperature",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "truncate_prompt_tokens",
}
"""What the core does itself, or every runner can."""


def test_each_parameter_is_a_feature_or_served_by_every_runner() -> None:
    assert WISHES.keys() | EVERYWHERE == set(SamplingParams.__struct_fields__)
    assert WISHES.keys().isdisjoint(EVERYWHERE)


@pytest.mark.parametrize("field", WISHES)
def test_a_parameter_that_the_runner_does_not_declare(field: str) -> None:
    feature, wish = WISHES[field]
    limits = dataclasses.replace(LIMITS, features=FEATURES - {feature})
    error = refused(limits, temperature=1, **{field: wish})
    served = ", ".join(sorted(FEATURES - {feature}))
    assert (str(error), error.param) == (f"runner 'fake' 1.0 does not serve {field}; it serves: {served}", field)
    passed(dataclasses.replace(LIMITS, features=frozenset({feature})), temperature=1, **{field: wish})
    passed(dataclasses.replace(LIMITS, features=frozenset()), **{field: getattr(SamplingParams(), field)})


def test_bad_words_are_resolved_once_with_and_without_a_space() -> None:
    ask = passed(bad_words=["no", "no", "nay"], bad_words_token_ids=((7,), (110, 111)))
    expected = ((7,), (110, 111), (32, 110, 111), (110, 97, 121), (32, 110, 97, 121))
    assert ask.params.bad_words_token_ids == expected
    assert validate(ask, LIMITS) == ask, "looked at twice, it stays the same"


def test_bad_words_need_a_tokenizer() -> None:
    message = "bad words need a tokenizer, and this model has none; use bad_words_token_ids"
    assert str(refused(dataclasses.replace(LIMITS, bad_word_ids=None), bad_words=("x",))) == message


@given(st.lists(st.integers(0, 299), min_size=1, max_size=30).map(tuple), st.integers(1, 40))
def test_truncation_keeps_the_last_tokens(prompt: tuple[int, ...], most: int) -> None:
    seen: list[int] = []
    limits = dataclasses.replace(LIMITS, check_fits=lambda tokens, _: seen.append(tokens))
    ask = passed(limits, prompt, truncate_prompt_tokens=most)
    assert ask.prompt_token_ids == prompt[-most:]
    assert seen == [len(ask.prompt_token_ids)], "what fits is asked of what is left"
    assert passed(limits, prompt).prompt_token_ids == prompt


def test_text_that_can_hardly_fit_is_not_tokenized() -> None:  # E4
    check_size(["x" * 128_000], None, LIMITS)
    with pytest.raises(RequestTooLong) as caught:
        check_size(["x" * 100_000, "é" * 14_001], None, LIMITS)
    assert str(caught.value) == (
        "the prompt has 128002 bytes or more, and at most 128000 are taken, 128 for each of the 1000 tokens of a "
        "request (max_model_len): shorten it, or set truncate_prompt_tokens to keep its end"
    )
    cut = SamplingParams(truncate_prompt_tokens=5)
    check_size(["x" * 10_000_000], cut, LIMITS)
    for limits, params in ((LIMITS, cut), (dataclasses.replace(LIMITS, max_model_len=10**6), None)):
        with pytest.raises(RequestTooLong) as caught:
            check_size(["x" * 10_000_001], params, limits)
        assert str(caught.value) == (
            "the prompt has 10000001 bytes or more, and at most 10000000 are taken, the most that is tokenized: "
            "shorten it"
        )
    assert caught.value.param == "prompt"
