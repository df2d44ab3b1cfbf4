"""What a schema asks for is kept or refused: answers of random schemas, drawn at random, against jsonschema."""

from __future__ import annotations

import decimal
import json
import random
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.messages import StructuredOutput, ToolSchema
from enginebay.structured import GrammarState
from enginebay.structured._definitions import definition_of, form_of
from enginebay.structured._llguidance import new_state
from enginebay.structured._schema_faults import schema_fault

from .conftest import tokens_of
from .test_llguidance import EOS, TOKENIZER, VOCABULARY

MOST = 60
ENDERS = '0159".,}]'

numbers = st.sampled_from(
    [0, 1, -1, 3, -3, 7, 10, 99, 100, -100, 0.5, -0.5, 0.25, 0.001, 1e-7, 1.5, -2.5, 99.25, 2**53, 1e16]
)
some_numbers = st.fixed_dictionaries(
    {"type": st.sampled_from(["number", "number", "integer"])},
    optional={
        "minimum": numbers,
        "exclusiveMinimum": numbers,
        "maximum": numbers,
        "exclusiveMaximum": numbers,
        "multipleOf": st.sampled_from([1, 2, 7, 0.5, 0.1, 0.01, 0.3, 100, 4294967295, 3e8]),
    },
)


def _beside(low: float, width: float, names: tuple[str, str]) -> dict[str, Any]:
    return {"type": "number", names[0]: low, names[1]: low + width}


narrow = st.builds(
    _beside,
    st.sampled_from([0, 0.0, -1, 3, -7, 99, 0.5, -0.25]),
    st.sampled_from([1e-3, 0.25, 0.5, 1, 1.5]),
    st.sampled_from(
        [(low, high) for low in ("minimum", "exclusiveMinimum") for high in ("maximum", "exclusiveMaximum")]
    ),
)
texts = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": st.integers(0, 3),
        "maxLength": st.integers(0, 4),
        "pattern": st.sampled_from(["^[a-c]{1,2}$", "^a", "b$", "[0-9]", "^$", r"^\d{2}$", "^[éz]$", "^[^a]$"]),
    },
)
values = st.sampled_from([0, 1, 1.0, 1.5, 1e2, "a", "", None, True, [], {}, [1], {"a": 1}, 'é"\\', 1e-7])
leaves = st.one_of(
    some_numbers,
    narrow,
    texts,
    st.builds(lambda some: {"enum": some}, st.lists(values, min_size=1, max_size=4)),
    st.builds(lambda one: {"const": one}, values),
)
names = st.sampled_from(["a", "b", "ab", "x1", ""])


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(names, inner, max_size=3),
            "required": st.lists(names, max_size=2, unique=True),
            "additionalProperties": st.one_of(st.just(False), inner),
            "patternProperties": st.dictionaries(st.sampled_from(["^a$", "^[ab]$", "^x", "[0-9]$"]), inner, max_size=2),
            "minProperties": st.integers(0, 3),
            "maxProperties": st.integers(0, 3),
        },
    )


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"type": st.just("array"), "maxItems": st.integers(0, 3)},
        optional={
            "items": st.one_of(inner, st.just(False)),
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "minItems": st.integers(0, 2),
            "uniqueItems": st.booleans(),
        },
    )


schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        _objects(inner),
        _arrays(inner),
        st.builds(
            lambda key, some: {key: some}, st.sampled_from(["anyOf", "allOf"]), st.lists(inner, min_size=1, max_size=2)
        ),
        st.builds(lambda one, other: other | {"anyOf": [one]}, inner, inner),
        st.builds(lambda one, other: {"$ref": "#/$defs/d", "$defs": {"d": one}} | other, inner, inner),
    ),
    max_leaves=5,
)


def started(schema: Any) -> GrammarState | None:
    try:
        return new_state(VOCABULARY, definition_of(*form_of(StructuredOutput.of_schema(schema))))
    except ValueError:
        return None


def drawn(state: GrammarState, numbers: random.Random) -> str | None:
    """A whole answer, if it ends soon; what brings it to its end is drawn more often."""
    answer: list[int] = []
    for _ in range(MOST):
        mask = tokens_of(state.mask())
        if state.error:
            return None  # no token fits, and the request fails: a pattern whose names are all taken
        if EOS in mask and (len(mask) == 1 or numbers.random() < 0.6):
            return TOKENIZER.decode(answer)
        allowed = sorted(mask - {EOS})
        short = [token for token in allowed if TOKENIZER.decode([token]) in ENDERS] or allowed
        if not allowed:
            return None  # a $ref to itself, or what no answer fits
        token = numbers.choice(short if numbers.random() < 0.6 else allowed)
        assert state.accept((token,)) == 1
        answer.append(token)
    return None


def check(schema: Any, seed: int) -> None:
    state = started(schema)
    if state is None:
        return
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    with decimal.localcontext(prec=400):
        for number in range(6):
            text = drawn(state.copy(), random.Random(seed + number))
            try:
                if text is not None:
                    jsonschema.Draft202012Validator(exact).validate(json.loads(text, parse_float=Decimal))
            except decimal.InvalidOperation:
                continue  # an exponent that is too large to compute with


@settings(max_examples=250, deadline=None)
@given(schemas, st.integers(0, 2**31))
def test_what_is_not_refused_is_kept(schema: Any, seed: int) -> None:
    check(schema, seed)


@settings(max_examples=250, deadline=None)
@given(st.one_of(narrow, some_numbers), st.integers(0, 2**31))
def test_bounds_that_are_not_refused_are_kept(schema: Any, seed: int) -> None:
    check(schema, seed)


@pytest.mark.soak
@settings(max_examples=10_000, deadline=None)
@given(schemas, st.integers(0, 2**31))
def test_what_is_not_refused_is_kept_of_many(schema: Any, seed: int) -> None:
    check(schema, seed)


DIGITS = "is not kept: its digits, times those that it meets, are over 0 and below 429,496,729"
LITTLE = {"patternProperties": {"^a$": {}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        (
            {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.001},
            "exclusiveMinimum 0 with exclusiveMaximum 0.001 is not kept: 0 itself could be drawn",
        ),
        (
            {"items": {"type": "number", "exclusiveMaximum": -3.0, "minimum": -3.5}},
            "exclusiveMaximum -3 with minimum -3.5 is not kept: -3 itself could be drawn",
        ),
        (
            {"allOf": [{"exclusiveMinimum": 7}, {"maximum": 7.5}]},
            "exclusiveMinimum 7 with maximum 7.5 is not kept: 7 itself could be drawn",
        ),
        (
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "minimum": 0,
                "exclusiveMinimum": True,
                "maximum": 0.5,
            },
            "exclusiveMinimum 0 with maximum 0.5 is not kept: 0 itself could be drawn",
        ),
        (LITTLE | {"minProperties": 2}, "minProperties 2 is not kept: it may be at most 1, as 0 are required"),
        (
            {"minProperties": 4, "required": ["a", "b"]},
            "minProperties 4 is not kept: it may be at most 3, as 2 are required",
        ),
        ({"type": "integer", "minimum": 1e300}, "minimum 1e+300 is not kept: a bound has at most 53 bits"),
        (
            {"multipleOf": 4294967295},
            f"multipleOf 4.29497e+09 {DIGITS}",
        ),
        (
            {"allOf": [{"multipleOf": n} for n in (99991, 99989)]},
            f"multipleOf 99989, 99991 {DIGITS}",
        ),
        (
            {"multipleOf": 0},
            f"multipleOf 0 {DIGITS}",
        ),
        ({"enum": [2**53 + 1]}, "it has the number 9007199254740993, which the library rounds to 9007199254740992"),
        ({"exclusiveMinimum": 0}, ""),
        ({"exclusiveMinimum": 0, "maximum": 1}, ""),
        ({"minimum": 0, "maximum": 0.001}, ""),
        ({"exclusiveMinimum": 0.5, "exclusiveMaximum": 0.75}, ""),
        ({"properties": {"price": {"exclusiveMinimum": 0}, "share": {"minimum": 0, "maximum": 0.5}}}, ""),
        (LITTLE | {"minProperties": 1}, ""),
        ({"minProperties": 3, "required": ["a", "b"]}, ""),
        ({"properties": {"minProperties": {"type": "integer"}, "exclusiveMinimum": {}}}, ""),
        ({"multipleOf": 0.01}, ""),
        (True, ""),
    ],
)
def test_what_is_refused(schema: Any, fault: str) -> None:
    assert schema_fault(schema) == fault


@pytest.mark.parametrize(
    "structured",
    [
        StructuredOutput.of_schema({"multipleOf": 0}),
        StructuredOutput(tools=(ToolSchema.of("a", {"properties": {"n": {"multipleOf": 0}}}),)),
        StructuredOutput(ebnf='start: "x" %json {"multipleOf": 0} "y"'),
    ],
    ids=["json_schema", "tools", "ebnf"],
)
def test_a_schema_is_looked_at_wherever_it_stands(structured: StructuredOutput) -> None:
    with pytest.raises(ValueError, match=r"^multipleOf 0 is not kept"):
        definition_of(*form_of(structured))
