"""What is refused before it runs, and in which words. E1, E4."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.engine.admission.admit import AdmissionLimits, Ask, validate
from enginebay.errors import InvalidRequest
from enginebay.messages import FinishReason, SamplingParams, StructuredOutput
from support.fake_engine import FEATURES, FakeEngine

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
        ({"max_tokens": 2**63}, "max_tokens must be an integer from 1 to 2**63 - 1, not 9223372036854775808"),
        ({"top_k": 2**70}, "top_k must be an integer from 0 to 2**63 - 1, not 1180591620717411303424"),
        ({"max_tokens": True}, "max_tokens must be an integer, 1 or more, not True"),
        ({"temperature": True}, "temperature must be a finite number, 0 or more, not True"),
        ({"ignore_eos": 1}, "ignore_eos must be True or False, not 1"),
        ({"skip_special_tokens": None}, "skip_special_tokens must be True or False, not None"),
        ({"stop": ("a\ud800",)}, "stop has a lone surrogate at character 1 ('a\\ud800'): it is no Unicode text"),
        ({"stop_token_ids": (2**70,)}, f"stop token {2**70} is outside the model's vocabulary (0 to 99)"),
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


SURROGATE = "x\udfff"


@pytest.mark.parametrize("name", ["request_id", "tenant", "cache_salt", "adapter", "traceparent"])
def test_no_string_with_a_surrogate_passes(name: str) -> None:
    error = refused(**{name: SURROGATE})
    assert (error.param, str(error)) == (
        name,
        f"{name} has a lone surrogate at character 1 ('x\\udfff'): it is no Unicode text",
    )


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (None, "extra must be a dict of bytes by plugin name, not NoneType"),
        ({"\U0001f600" * 16384: b"x"}, "extra holds 65537 bytes; at most 65536 are allowed"),
        ({1: b""}, "extra must hold bytes by plugin name, not b'' under 1"),
        ({"p": "text"}, "extra must hold bytes by plugin name, not 'text' under 'p'"),
        ({SURROGATE: b""}, "extra has a lone surrogate at character 1 ('x\\udfff'): it is no Unicode text"),
    ],
)
def test_extras_are_bytes_by_name(extra: Any, message: str) -> None:
    assert str(refused(extra=extra)) == message


NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64, 2**70, -(2**70), 10**400, 10**5000]),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
)
TEXTS = st.one_of(st.text(max_size=3), st.just("\ud800"), st.none(), st.integers(), st.binary(max_size=2))
PARAMS = {
    **dict.fromkeys(("max_tokens", "temperature", "top_k", "top_p", "seed"), NUMBERS),
    **dict.fromkeys(("ignore_eos", "skip_special_tokens"), NUMBERS),
    **dict.fromkeys(("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "n"), NUMBERS),
    **dict.fromkeys(("min_tokens", "truncate_prompt_tokens", "logprobs", "prompt_logprobs"), NUMBERS),
    "logit_bias": st.one_of(NUMBERS, st.dictionaries(st.one_of(st.integers(-1, 300), TEXTS), NUMBERS, max_size=3)),
    "bad_words": st.one_of(TEXTS, st.lists(TEXTS, max_size=2).map(tuple)),
    "bad_words_token_ids": st.one_of(NUMBERS, st.lists(st.lists(NUMBERS, max_size=2), max_size=2)),
    "stop": st.one_of(TEXTS, st.lists(TEXTS, max_size=2).map(tuple)),
    "stop_token_ids": st.one_of(NUMBERS, st.lists(NUMBERS, max_size=2).map(tuple)),
    "structured": st.one_of(TEXTS, st.builds(StructuredOutput, json_schema=TEXTS, regex=TEXTS, choice=TEXTS)),
}
FIELDS = {
    **dict.fromkeys(("request_id", "tenant", "cache_salt", "adapter", "traceparent"), TEXTS),
    **dict.fromkeys(("priority", "timeout"), NUMBERS),
    "prompt_token_ids": st.one_of(NUMBERS, st.lists(NUMBERS, max_size=2).map(tuple)),
    "extra": st.one_of(NUMBERS, st.dictionaries(TEXTS, TEXTS, max_size=2)),
}


def test_no_parameter_is_forgotten_here() -> None:
    assert PARAMS.keys() == set(SamplingParams.__struct_fields__)


@settings(max_examples=400)
@given(params=st.fixed_dictionaries({}, optional=PARAMS), fields=st.fixed_dictionaries({}, optional=FIELDS))
def test_whatever_a_client_brings_hurts_it_alone(params: dict[str, Any], fields: dict[str, Any]) -> None:
    """A request is refused with ``InvalidRequest``, or it runs; the engine lives and others are answered."""
    engine = FakeEngine(features=FEATURES)
    engine.add("good", max_tokens=2)
    whole = {"request_id": "odd", "prompt_token_ids": (104, 105), "params": SamplingParams(**params), **fields}
    said = ""
    try:
        engine.core.add_request(Ask(**whole))
    except InvalidRequest as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 400
    for _ in range(3):
        engine.core.step()
    assert engine.core.death() is None
    assert ("good", FinishReason.LENGTH) in [(s.request_id, s.finish_reason) for s in engine.hooks.summaries]


def test_the_last_line_refuses_what_the_codec_cannot_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the checks may overlook: here, the one of Unicode."""
    for module in ("admit", "params"):
        monkeypatch.setattr(f"enginebay.engine.admission.{module}.check_unicode", lambda name, value: None)
    for error in (refused({"stop": (SURROGATE,)}), refused(request_id=SURROGATE), refused(extra={SURROGATE: b""})):
        assert str(error).startswith("the request cannot be sent to a worker: ")


def test_a_request_that_used_to_kill_the_engine_is_refused_alone() -> None:
    engine = FakeEngine(features=FEATURES)
    for params in (
        {"top_k": 2**70, "temperature": 1.0},
        {"max_tokens": 2**70},
        {"stop": ("\ud800",)},
        {"ignore_eos": 1},
        {"skip_special_tokens": None},
        {"temperature": 10**400},
    ):
        with pytest.raises(InvalidRequest):
            engine.add("bad", **params)
    assert engine.answer(max_tokens=2)[0] == "th"
