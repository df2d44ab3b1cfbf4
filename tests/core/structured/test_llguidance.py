"""What the masks allow is what the shape says: against jsonschema, against re, and token by token."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from enginebay.messages import StructuredOutput
from enginebay.structured import GrammarState
from enginebay.structured._definitions import definition_of, form_of
from enginebay.structured._llguidance import new_state
from enginebay.structured._vocabulary import load_vocabulary
from support.tiny_tokenizers import byte_level

from .conftest import accepts, eos_of, tokens_of

TOKENIZER = byte_level()
EOS = eos_of(TOKENIZER)
VOCABULARY = load_vocabulary(TOKENIZER.to_json(), TOKENIZER.vocab_size + 7, [EOS])
MOST = 400

scalars = st.sampled_from(
    [
        {"type": "integer", "minimum": -5, "maximum": 40},
        {"type": "boolean"},
        {"type": "null"},
        {"type": "string", "maxLength": 4},
        {"type": "string", "pattern": "^[a-c]{2,3}$"},
        {"enum": ["red", 7, None, {"a": 1}]},
        {"const": 'a "b" é'},
        {"type": "number", "minimum": 0, "exclusiveMaximum": 2},
    ]
)


def _object(properties: dict[str, Any], required: int) -> dict[str, Any]:
    names = sorted(properties)
    return {
        "type": "object",
        "properties": {name: properties[name] for name in names},
        "required": names[:required],
        "additionalProperties": False,
    }


schemas = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.builds(_object, st.dictionaries(st.sampled_from("abcd"), inner, max_size=3), st.integers(0, 3)),
        st.builds(lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 3)),
        st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=6,
)

regexes = st.recursive(
    st.sampled_from(["a", "b", "[a-c]", "é", r"\d", "日", "x{2}", r"\."]),
    lambda inner: st.one_of(
        st.builds("({}|{})".format, inner, inner),
        st.builds("{}{}".format, inner, inner),
        st.builds("({}){{0,3}}".format, inner),
        st.builds("({})?".format, inner),
    ),
    max_leaves=6,
)


def started(structured: StructuredOutput) -> GrammarState:
    return new_state(VOCABULARY, definition_of(*form_of(structured)))


def drawn(structured: StructuredOutput, seed: int) -> str:
    """An answer drawn at random from the masks, ended as soon as the die says so."""
    state, numbers, answer = started(structured), random.Random(seed), []
    for _ in range(MOST):
        mask = tokens_of(state.mask())
        assert state.error == ""
        assert mask, "there is always something to draw"
        assert (EOS in mask) == state.is_complete
        if EOS in mask and (len(mask) == 1 or numbers.random() < 0.5):
            return TOKENIZER.decode(answer)
        token = numbers.choice(sorted(mask - {EOS}))
        assert token not in TOKENIZER.special_ids
        assert state.accept((token,)) == 1
        answer.append(token)
    raise AssertionError(f"no end after {MOST} tokens: {TOKENIZER.decode(answer)!r}")


@settings(max_examples=25, deadline=None)
@given(schemas, st.integers(0, 2**31))
def test_what_is_drawn_satisfies_the_schema(schema: dict[str, Any], seed: int) -> None:
    text = drawn(StructuredOutput.of_schema(schema), seed)
    jsonschema.validate(json.loads(text), schema)


@settings(max_examples=25, deadline=None)
@given(schemas, st.data())
def test_what_satisfies_the_schema_may_be_drawn(schema: dict[str, Any], data: st.DataObject) -> None:
    value = data.draw(
        st.recursive(
            st.sampled_from([None, True, 0, 7, 40, 41, 1.5, "", "red", "ab", "abcde", 'a "b" é']),
            lambda inner: st.one_of(
                st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
            ),
            max_leaves=3,
        )
    )
    value = _in_order(value)
    valid = jsonschema.Draft202012Validator(schema).is_valid(value)
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert accepts(started(StructuredOutput.of_schema(schema)), TOKENIZER, text) == valid


def _in_order(value: Any) -> Any:
    """Properties come in the order in which the schema names them."""
    if isinstance(value, dict):
        return {name: _in_order(value[name]) for name in sorted(value)}
    return [_in_order(one) for one in value] if isinstance(value, list) else value


@settings(max_examples=25, deadline=None)
@given(regexes, st.integers(0, 2**31))
def test_what_is_drawn_matches_the_regex(regex: str, seed: int) -> None:
    text = drawn(StructuredOutput(regex=regex), seed)
    assert re.fullmatch(regex, text)


@settings(max_examples=25, deadline=None)
@given(regexes, st.text("abcé日x.5", max_size=6))
def test_what_matches_the_regex_may_be_drawn(regex: str, text: str) -> None:
    assert accepts(started(StructuredOutput(regex=regex)), TOKENIZER, text) == bool(re.fullmatch(regex, text))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=5).filter(str.isprintable), min_size=1, max_size=4), st.integers(0, 2**31))
def test_what_is_drawn_is_a_choice(choices: list[str], seed: int) -> None:
    assume(not any(set(TOKENIZER.encode(choice)) & TOKENIZER.special_ids for choice in choices))
    assert drawn(StructuredOutput(choice=tuple(choices)), seed) in choices


@settings(max_examples=15, deadline=None)
@given(schemas, st.integers(0, 2**31), st.integers(0, 20))
def test_a_state_rebuilt_from_its_tokens_is_the_same(schema: dict[str, Any], seed: int, cut: int) -> None:
    structured = StructuredOutput.of_schema(schema)
    tokens = TOKENIZER.encode(drawn(structured, seed))[:cut]
    one_by_one, at_once = started(structured), started(structured)
    for token in tokens:
        one_by_one.mask()
        assert one_by_one.accept((token,)) == 1
    assert at_once.accept(tokens) == len(tokens)
    assert one_by_one.mask() == at_once.mask() == at_once.copy().mask()


def test_a_copy_goes_its_own_way() -> None:
    state = started(StructuredOutput(regex="ab|cd"))
    copy = state.copy()
    assert copy.accept(TOKENIZER.encode("a")) == 1
    assert tokens_of(state.mask()) >= {*TOKENIZER.encode("a"), *TOKENIZER.encode("c")}
    assert state.accept(TOKENIZER.encode("cd")) == len(TOKENIZER.encode("cd"))


@pytest.mark.parametrize("text", ["</s>", "<|end|>"])
def test_control_tokens_are_no_text(text: str) -> None:
    state = started(StructuredOutput(json_schema='{"type":"string"}'))
    assert accepts(state, TOKENIZER, json.dumps(text)), "its characters may be written"
    state.accept(TOKENIZER.encode('"'))
    assert not tokens_of(state.mask()) & TOKENIZER.special_ids
