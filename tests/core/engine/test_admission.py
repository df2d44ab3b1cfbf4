"""What is refused before it runs, and in which words. E1, E4."""

from __future__ import annotations

import math
from typing import Any

import pytest

from enginebay.engine.admission import AdmissionLimits, Ask, validate
from enginebay.errors import InvalidRequest
from enginebay.messages import SamplingParams

LIMITS = AdmissionLimits(
    vocab_size=100, runner="runner 'fake' 1.0", features=frozenset({"seed"}), check_fits=lambda prompt, most: None
)


def refused(sampling: dict[str, Any] | None = None, limits: AdmissionLimits = LIMITS, **ask: Any) -> InvalidRequest:
    whole = {"request_id": "r", "prompt_token_ids": (1, 2), "params": SamplingParams(**(sampling or {})), **ask}
    with pytest.raises(InvalidRequest) as caught:
        validate(Ask(**whole), limits)
    return caught.value


def test_a_good_request_passes() -> None:
    params = SamplingParams(temperature=1.5, seed=2**64 - 1, stop=("x" * 256,) * 16, stop_token_ids=(0, 99))
    validate(Ask(request_id="é" * 256, prompt_token_ids=(0, 99), params=params, timeout=0.5), LIMITS)


@pytest.mark.parametrize(
    ("ask", "param", "message"),
    [
        ({"request_id": 7}, "request_id", "request_id must be a string, not int (7)"),  # E1
        ({"request_id": None}, "request_id", "request_id must be a string, not NoneType (None)"),  # E1
        ({"request_id": ""}, "request_id", "request_id must not be empty"),
        ({"request_id": "x" * 257}, "request_id", "request_id has 257 characters; at most 256 are allowed"),
        ({"prompt_token_ids": ()}, "prompt", "the prompt is empty; it must have at least one token"),  # E4
        (
            {"prompt_token_ids": (1, 100)},
            "prompt",
            "prompt token 1 is 100, outside the model's vocabulary (0 to 99)",
        ),  # E4
        ({"prompt_token_ids": (-1,)}, "prompt", "prompt token 0 is -1, outside the model's vocabulary (0 to 99)"),
        ({"prompt_token_ids": (True,)}, "prompt", "prompt token 0 is True: token ids are integers from 0 to 99"),
        ({"prompt_token_ids": ("a",)}, "prompt", "prompt token 0 is 'a': token ids are integers from 0 to 99"),
        ({"params": {"a": 1}}, "params", "sampling parameters must be SamplingParams, not dict"),
        ({"priority": 2**31}, "priority", "priority must be an integer within 32 bits, not 2147483648"),
        ({"timeout": 0.0}, "timeout", "timeout must be a finite number of seconds above 0, not 0.0"),
        ({"tenant": "x" * 257}, "tenant", "tenant must be a string of at most 256 characters"),
        ({"adapter": "a"}, "adapter", "adapter 'a' is not loaded; this version serves no adapters"),
        ({"extra": {"p": b"x" * 65536}}, "extra", "extra holds 65537 bytes; at most 65536 are allowed"),
    ],
)
def test_requests_that_are_refused(ask: dict[str, Any], param: str, message: str) -> None:
    error = refused(**ask)
    assert (str(error), error.param) == (message, param)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be an integer, 1 or more, not 0"),
        ({"max_tokens": 1.5}, "max_tokens must be an integer, 1 or more, not 1.5"),
        ({"temperature": math.nan}, "temperature must be a finite number, 0 or more, not nan"),  # E4
        ({"temperature": math.inf}, "temperature must be a finite number, 0 or more, not inf"),
        ({"temperature": -0.1}, "temperature must be a finite number, 0 or more, not -0.1"),
        ({"temperature": "hot"}, "temperature must be a finite number, 0 or more, not 'hot'"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, not 0.0"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1, not 1.1"),
        ({"top_p": math.nan}, "top_p must be above 0 and at most 1, not nan"),
        ({"top_k": -1}, "top_k must be an integer, 0 or more, not -1"),
        ({"seed": -1}, "seed must be an integer from 0 to 2**64 - 1, not -1"),
        ({"seed": 2**64}, "seed must be an integer from 0 to 2**64 - 1, not 18446744073709551616"),
        ({"stop": "END"}, "stop must be a tuple, not str"),
        ({"stop": ("",)}, "stop strings must be non-empty strings, not ''"),
        ({"stop": ("x" * 257,)}, "a stop string has 257 characters; at most 256 are allowed"),
        ({"stop": ("x",) * 17}, "stop has 17 strings; at most 16 are allowed"),
        ({"stop_token_ids": (100,)}, "stop token 100 is outside the model's vocabulary (0 to 99)"),
        ({"stop_token_ids": (1,) * 1025}, "stop_token_ids has 1025 ids; at most 1024 are allowed"),
        ({"top_k": 5}, "runner 'fake' 1.0 does not serve top_k; it serves: seed"),
        ({"top_p": 0.5}, "runner 'fake' 1.0 does not serve top_p; it serves: seed"),
    ],
)
def test_parameters_that_are_refused(params: dict[str, Any], message: str) -> None:
    error = refused(params)
    assert str(error) == message
    assert error.param is not None
    assert error.param in params


def test_a_runner_that_declares_nothing() -> None:
    limits = AdmissionLimits(vocab_size=9, runner="runner 'r' 2", features=frozenset(), check_fits=lambda a, b: None)
    expected = "runner 'r' 2 does not serve seed; it serves: greedy and temperature only"
    assert str(refused({"seed": 1}, limits)) == expected


def test_stop_strings_need_a_tokenizer() -> None:
    limits = AdmissionLimits(
        vocab_size=9, runner="r", features=frozenset(), check_fits=lambda a, b: None, has_text=False
    )
    message = "stop strings need a tokenizer, and this model has none; use stop_token_ids"
    assert str(refused({"stop": ("x",)}, limits)) == message
