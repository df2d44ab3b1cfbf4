"""Whatever passes admission is of plain values and crosses to a worker unchanged; whatever does not is refused."""

from __future__ import annotations

import enum
import math
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.engine.admission.admit import AdmissionLimits, Ask, admit, validate
from enginebay.errors import InvalidRequest
from enginebay.messages import ExecuteModel, NewRequest, SamplingParams, SchedulerOutput, StructuredOutput, ToolSchema
from enginebay.tracing import parse_traceparent
from enginebay.transport import decode_call, encode
from support.fake_engine import FEATURES, FakeEngine

LIMITS = AdmissionLimits(
    vocab_size=100,
    runner="runner 'fake' 1.0",
    features=FEATURES,
    check_fits=lambda prompt, most: None,
    bad_word_ids=lambda word: (tuple(ord(c) % 100 for c in word),),
)


class Token(enum.IntEnum):
    A = 7


class Kind(enum.StrEnum):
    B = "b"


class Text(str):
    """Says another thing of itself than it is."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return False

    def __str__(self) -> str:
        raise RuntimeError("not me")


class Number(int):
    """Never outside of any bound."""

    def __lt__(self, other: object) -> bool:
        return False

    __le__ = __ge__ = __gt__ = __lt__


class Listed(list[Any]):
    """A list of something else."""

    def __len__(self) -> int:
        return 3


class Pretends:
    """``isinstance`` takes it for an int."""

    __class__: ClassVar[type] = int


def passed(sampling: dict[str, Any] | None = None, **ask: Any) -> Ask:
    whole = {"request_id": "r", "prompt_token_ids": (1, 2), "params": SamplingParams(**(sampling or {})), **ask}
    return validate(Ask(**whole), LIMITS)


def refused(sampling: dict[str, Any] | None = None, **ask: Any) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        passed(sampling, **ask)
    return caught.value.param


def plain_types(value: Any) -> bool:
    if type(value) in (tuple, list):
        return all(map(plain_types, value))
    if type(value) is dict:
        return all(plain_types(key) and plain_types(item) for key, item in value.items())
    if type(value) in (SamplingParams, StructuredOutput, ToolSchema):
        return all(plain_types(getattr(value, name)) for name in value.__struct_fields__)
    return type(value) in (int, str, float, bytes, bool, type(None))


def test_subclasses_become_what_they_are_of() -> None:
    ask = passed(
        {
            "temperature": np.float64(0.5),
            "top_p": np.float64(1),
            "top_k": Token.A,
            "seed": Number(3),
            "stop": [Kind.B, Text("x")],
            "stop_token_ids": [Token.A],
            "max_tokens": Token.A,
            "min_tokens": Number(2),
            "min_p": np.float64(0.25),
            "repetition_penalty": 2,
            "presence_penalty": np.float64(-1),
            "logit_bias": {Token.A: Number(3), 1: np.float64(0.5)},
            "bad_words": [Text("x")],
            "bad_words_token_ids": [[Token.A, Number(1)], Listed([Token.A])],
            "n": Number(2),
            "logprobs": Number(3),
        },
        request_id=Text("me"),
        prompt_token_ids=[Token.A, Number(1)],
        priority=Token.A,
        tenant=Kind.B,
        timeout=np.float64(2),
        extra={Kind.B: b"y"},
    )
    assert plain_types(ask.params)
    assert all(plain_types(getattr(ask, name)) for name in Ask.__dataclass_fields__ if name != "params")
    assert ask == Ask(
        request_id="me",
        prompt_token_ids=(7, 1),
        params=SamplingParams(
            temperature=0.5,
            top_k=7,
            seed=3,
            stop=("b", "x"),
            stop_token_ids=(7,),
            max_tokens=7,
            top_p=1.0,
            min_tokens=2,
            min_p=0.25,
            repetition_penalty=2.0,
            presence_penalty=-1.0,
            logit_bias={7: 3.0, 1: 0.5},
            bad_words=("x",),
            bad_words_token_ids=((7, 1), (7,), (20,)),
            n=2,
            logprobs=3,
        ),
        priority=7,
        tenant="b",
        timeout=2.0,
        extra={"b": b"y"},
    )


@pytest.mark.parametrize(("temperature", "expected"), [(1, 1.0), (2**70, 2.0**70), (0, 0.0), (np.float64(0.25), 0.25)])
def test_numbers_that_mean_a_float_are_one(temperature: Any, expected: float) -> None:
    params = passed({"temperature": temperature}).params
    assert (params.temperature, type(params.temperature)) == (expected, float)


def test_an_integer_is_a_timeout_too() -> None:
    assert repr(passed(timeout=3).timeout) == "3.0"


@pytest.mark.parametrize(
    ("sampling", "ask", "param"),
    [
        ({}, {"timeout": 10**400}, "timeout"),
        ({}, {"timeout": True}, "timeout"),
        ({"temperature": 10**400}, {}, "temperature"),
        ({"temperature": True}, {}, "temperature"),
        ({"temperature": np.float64("nan")}, {}, "temperature"),
        ({"top_p": np.float64("inf")}, {}, "top_p"),
        ({"top_p": 2}, {}, "top_p"),
        ({"top_k": Number(-1)}, {}, "top_k"),
        ({"seed": Number(2**64)}, {}, "seed"),
        ({"max_tokens": Pretends()}, {}, "max_tokens"),
        ({"max_tokens": True}, {}, "max_tokens"),
        ({"stop": 7}, {}, "stop"),
        ({"stop": Listed()}, {"prompt_token_ids": Listed()}, "prompt"),
        ({"stop": (b"x",)}, {}, "stop"),
        ({"stop": ("\ud800",)}, {}, "stop"),
        ({"ignore_eos": 1}, {}, "ignore_eos"),
        ({"n": Number(99), "temperature": 1}, {}, "n"),
        ({"min_p": np.float64("nan")}, {}, "min_p"),
        ({"repetition_penalty": 10**400}, {}, "repetition_penalty"),
        ({"presence_penalty": True}, {}, "presence_penalty"),
        ({"logit_bias": {Number(100): 1}}, {}, "logit_bias"),
        ({"logit_bias": {1: Pretends()}}, {}, "logit_bias"),
        ({"logit_bias": [(1, 2)]}, {}, "logit_bias"),
        ({"bad_words": "text"}, {}, "bad_words"),
        ({"bad_words_token_ids": ((Number(100),),)}, {}, "bad_words_token_ids"),
        ({"bad_words_token_ids": ({1: 2},)}, {}, "bad_words_token_ids"),
        ({"logprobs": 1.0}, {}, "logprobs"),
        ({"truncate_prompt_tokens": Number(0)}, {}, "truncate_prompt_tokens"),
        ({"min_tokens": Number(300)}, {}, "min_tokens"),
        ({}, {"prompt_token_ids": (Number(100),)}, "prompt"),
        ({}, {"prompt_token_ids": {1: 2}}, "prompt"),
        ({}, {"request_id": Text("")}, "request_id"),
        ({}, {"request_id": "\udcff"}, "request_id"),
        ({}, {"traceparent": 7}, "traceparent"),
        ({}, {"traceparent": None}, "traceparent"),
        ({}, {"traceparent": b"00-1-2-01"}, "traceparent"),
        ({}, {"extra": [("a", b"")]}, "extra"),
        ({}, {"extra": {"a": "text"}}, "extra"),
        ({}, {"extra": {"a": bytearray()}}, "extra"),
        ({}, {"extra": {7: b""}}, "extra"),
        ({}, {"extra": {"\ud800": b""}}, "extra"),
    ],
)
def test_what_only_looks_right_is_refused(sampling: dict[str, Any], ask: dict[str, Any], param: str) -> None:
    assert refused(sampling, **ask) == param


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "x",
        "00-0-0-0",
        "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "A" * 32 + "-" + "1" * 16 + "-01",
        "é" * 9,
    ],
)
def test_a_traceparent_that_names_nothing_is_ignored(traceparent: str) -> None:
    assert parse_traceparent(traceparent) is None
    engine = FakeEngine()
    engine.add("a", ask={"traceparent": traceparent}, max_tokens=1)
    engine.run(5)
    assert engine.tokens["a"] == [*b"t"]


def test_the_core_keeps_plain_values() -> None:
    engine = FakeEngine()
    engine.core.add_request(Ask(request_id=Text("a"), prompt_token_ids=[Token.A], params=SamplingParams(max_tokens=2)))  # type: ignore[arg-type]  # what a client may do
    engine.run(5)
    assert engine.tokens == {"a": [*b"th"]}
    assert [type(request_id) for request_id in engine.tokens] == [str]


NUMBERS = st.one_of(
    st.integers(),
    st.integers(0, 99),
    st.floats(),
    st.booleans(),
    st.builds(np.float64, st.floats()),
    st.builds(np.int64, st.integers(-5, 5)),
    st.builds(Number, st.integers()),
    st.sampled_from([10**400, -(10**400), 2**63, 2**64 - 1, 2**64, 5e-324, math.inf]),
)
TEXTS = st.one_of(
    st.text(max_size=5),
    st.builds(Text, st.text(max_size=3)),
    st.text(st.characters(categories=["Cs"]), min_size=1, max_size=2),
    st.sampled_from(["", "x" * 257, Kind.B]),
)
SCALARS = st.one_of(NUMBERS, TEXTS, st.binary(max_size=3), st.none(), st.builds(Pretends), st.builds(object))
JUNK = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.lists(SCALARS, max_size=3).map(tuple),
    st.lists(SCALARS, max_size=3).map(Listed),
    st.dictionaries(TEXTS, SCALARS, max_size=2),
    st.recursive(st.none(), lambda inner: st.lists(inner, max_size=2), max_leaves=4),
)

GOOD: dict[str, Any] = {"request_id": "r", "prompt_token_ids": (1, 2)}
FIELDS = sorted(set(Ask.__dataclass_fields__) - {"params"})
PARAMS = sorted(SamplingParams.__struct_fields__)


def near(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what could pass, so that much does."""
    return st.integers(0, 9).flatmap(lambda roll: JUNK if roll == 7 else good)


SMALL = st.one_of(st.integers(1, 99), st.builds(Number, st.integers(1, 99)), st.just(Token.A))
FRACTIONS = st.one_of(st.floats(0.01, 1), st.builds(np.float64, st.floats(0.01, 1)), st.just(1))
TOKENS = st.one_of(st.lists(SMALL, min_size=1, max_size=4), st.lists(SMALL, min_size=1, max_size=4).map(tuple))
WORDS = st.one_of(st.text(min_size=1, max_size=5), st.builds(Text, st.text(min_size=1, max_size=3)), st.just(Kind.B))
BY_FIELD: dict[str, st.SearchStrategy[Any]] = {
    "request_id": near(WORDS),
    "prompt_token_ids": near(TOKENS),
    "priority": near(SMALL),
    "tenant": near(WORDS),
    "timeout": near(st.one_of(FRACTIONS, st.integers(1, 10**300))),
    "cache_salt": near(WORDS),
    "adapter": near(st.builds(Text)),
    "traceparent": near(WORDS),
    "extra": near(st.dictionaries(WORDS, st.binary(max_size=5), max_size=3)),
    "max_tokens": near(SMALL),
    "temperature": near(st.one_of(FRACTIONS, st.integers(0, 10**300))),
    "top_k": near(SMALL),
    "top_p": near(FRACTIONS),
    "seed": near(st.one_of(SMALL, st.integers(0, 2**64 - 1))),
    "stop": near(st.lists(WORDS, max_size=3)),
    "stop_token_ids": near(TOKENS),
    "ignore_eos": near(st.booleans()),
    "skip_special_tokens": near(st.booleans()),
    "min_p": near(FRACTIONS),
    "n": near(st.one_of(st.integers(1, 16), st.builds(Number, st.integers(1, 16)))),
    "repetition_penalty": near(st.one_of(FRACTIONS, st.integers(1, 5))),
    "presence_penalty": near(st.one_of(FRACTIONS, st.integers(-2, 2))),
    "frequency_penalty": near(st.one_of(FRACTIONS, st.integers(-2, 2))),
    "logit_bias": near(st.dictionaries(SMALL, st.one_of(FRACTIONS, st.integers(-100, 100)), max_size=3)),
    "bad_words": near(st.lists(WORDS, max_size=3)),
    "bad_words_token_ids": near(st.lists(TOKENS, max_size=3)),
    "min_tokens": near(st.integers(0, 9)),
    "truncate_prompt_tokens": near(st.one_of(st.none(), SMALL)),
    "logprobs": near(st.one_of(st.none(), st.integers(0, 20))),
    "prompt_logprobs": near(st.one_of(st.none(), st.integers(0, 20))),
    "structured": near(
        st.one_of(
            st.builds(StructuredOutput, json_schema=near(st.sampled_from(['{"a":[1]}', "true", Text("{}")]))),
            st.builds(StructuredOutput, regex=near(WORDS)),
            st.builds(StructuredOutput, choice=near(st.lists(WORDS, min_size=1, max_size=2))),
            st.builds(
                StructuredOutput,
                tools=near(
                    st.lists(near(st.builds(ToolSchema, name=near(WORDS), parameters=near(st.just("{}")))), max_size=2)
                ),
            ),
        )
    ),
}


def of(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.sets(st.sampled_from(names), max_size=3).flatmap(
        lambda chosen: st.fixed_dictionaries({name: BY_FIELD[name] for name in sorted(chosen)})
    )


def admitted(ask: Ask) -> Ask | str:
    """What is admitted, or the message with which it is refused; nothing else may happen."""
    try:
        return validate(ask, LIMITS)
    except InvalidRequest as error:
        return str(error)


@settings(max_examples=600, deadline=None)
@given(fields=of(FIELDS), params=of(PARAMS))
def test_whatever_passes_crosses_to_a_worker_and_back(fields: dict[str, Any], params: dict[str, Any]) -> None:
    ask = admitted(Ask(**{**GOOD, **fields, "params": SamplingParams(**params)}))
    if isinstance(ask, str):
        assert ask.encode()  # a message that can be printed and sent
        return
    choices = admit(ask, seed=2**63 - 1, arrival=1e9, arrival_number=0, default_timeout=None)
    assert len(choices) == ask.params.n
    for request in choices:
        new = NewRequest(
            request_id=request.request_id,
            token_ids=request.prompt_token_ids,
            num_prompt_tokens=len(request.prompt_token_ids),
            params=request.params,
            seed=request.seed,
            block_ids=((0,),),
            num_computed_tokens=0,
            choice=request.choice,
            extra=request.extra,
        )
        counts = {new.request_id: 1}
        step = ExecuteModel(scheduler_output=SchedulerOutput(step=0, new=(new,), num_scheduled_tokens=counts))
        assert decode_call(encode(step)) == step
        assert all(plain_types(getattr(request, name)) for name in request.__struct_fields__)
        assert request.deadline is None or math.isfinite(request.deadline)
