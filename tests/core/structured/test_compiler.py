"""Compiling a shape: every form, what is refused, and what one answer uses up."""

from __future__ import annotations

import json
import random

import pytest

from enginebay.messages import StructuredOutput, ToolSchema
from enginebay.runtime import system_runtime
from enginebay.structured import GrammarFailed, GrammarState, GrammarUnavailable, HelperCompiler, _child, _llguidance
from enginebay.structured._definitions import form_of
from enginebay.text import Tokenizer
from support.tiny_tokenizers import sentencepiece_like, wordpiece

from .conftest import PATIENCE, Compile, accepts, compiler_of, eos_of, tokens_of

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/name"}}, "required": ["city"]}
CITY |= {"additionalProperties": False, "$defs": {"name": {"type": "string", "maxLength": 9}}}
LEFT_OUT = "change that part of the schema, or leave it out"
LARK = "write it in Lark from the rule start, or in GBNF from the rule root, and simpler where it is too large"
RUST = "write it in the syntax of Rust's regex, and simpler where it is too large"


@pytest.mark.parametrize(
    ("structured", "good", "bad"),
    [
        (StructuredOutput(json_schema="{}"), ['{"a":[1,null]}', "3", '"é"'], ['{"a": 1}', "{", "[1, 2]"]),
        (StructuredOutput.of_schema(CITY), ['{"city":"Rome"}'], ["{}", '{"city":"Rome"} ', '{"city":"0123456789"}']),
        (StructuredOutput(regex=r"\d{2}-[a-c]+"), ["12-abc"], ["1-a", "12-", "12-abcd"]),
        (StructuredOutput(ebnf='start: "a" start | "b"'), ["b", "aab"], ["a", "ba"]),
        (StructuredOutput(ebnf='root ::= "x" item+\nitem ::= "1" | "2"'), ["x12"], ["x", "12"]),
        (StructuredOutput(choice=("yes", "ye", 'n"o\\ \n', "né")), ["yes", "ye", 'n"o\\ \n', "né"], ["y", "yess", "n"]),
        (
            StructuredOutput(tools=(ToolSchema.of("weather", CITY), ToolSchema(name="now"))),
            ['{"name":"weather","arguments":{"city":"Rome"}}', '{"name":"now","arguments":{}}'],
            ['{"name":"weather","arguments":{}}', '{"name":"other","arguments":{}}', '{"name":"now","arguments":3}'],
        ),
    ],
    ids=["any JSON", "json_schema", "regex", "Lark", "GBNF", "choice", "tools"],
)
def test_every_form(
    compiled: Compile, tokenizer: Tokenizer, structured: StructuredOutput, good: list[str], bad: list[str]
) -> None:
    state = compiled(structured)
    assert [text for text in good if not accepts(state, tokenizer, text)] == []
    assert [text for text in bad if accepts(state, tokenizer, text)] == []


@pytest.mark.parametrize(
    ("structured", "why"),
    [
        (StructuredOutput(json_schema='{"type":"objec"}'), f"Invalid type: objec; {LEFT_OUT}"),
        (StructuredOutput(json_schema='{"not":{}}'), f'Unimplemented keys: ["not"]; {LEFT_OUT}'),
        (
            StructuredOutput(json_schema='{"not":{},"x-guidance":{"lenient":true}}'),
            f'Unimplemented keys: ["not"]; {LEFT_OUT}',
        ),
        (
            StructuredOutput(json_schema='{"type":"integer","minimum":5,"maximum":3}'),
            f"Unsatisfiable schema: minimum (5) is greater than maximum (3); {LEFT_OUT}",
        ),
        (StructuredOutput(json_schema='{"$ref":"#"}'), f"no answer fits it; {LEFT_OUT}"),
        (StructuredOutput(json_schema=" false "), f"no answer fits it; {LEFT_OUT}"),
        (StructuredOutput(regex="[a&&b]"), f"no answer fits it; {RUST}"),
        (
            StructuredOutput(json_schema='{"enum":[1,[{"a":9007199254740993}]]}'),
            f"it has the number 9007199254740993, which the library rounds to 9007199254740992; {LEFT_OUT}",
        ),
        (
            StructuredOutput(regex="(a"),
            f'invalid regex "(a" (in regex): regex parse error: error: unclosed group; {RUST}',
        ),
        (StructuredOutput(ebnf="start: nothing"), f'at 1(8): unknown name: "nothing"; {LARK}'),
        (StructuredOutput(ebnf='begin: "a"'), f"no start rule found; {LARK}"),
        (
            StructuredOutput(json_schema='{"multipleOf":1e999}'),
            f"it has a number that is larger than every double; {LEFT_OUT}",
        ),
    ],
)
def test_what_cannot_be_compiled(compiler: HelperCompiler, structured: StructuredOutput, why: str) -> None:  # S15
    error = compiler.compile(structured).exception(PATIENCE)
    assert isinstance(error, GrammarFailed)
    param = f"structured.{form_of(structured)[0]}"
    assert (type(error), error.param, str(error)) == (GrammarFailed, param, f"{param} cannot be used: {why}")


@pytest.mark.parametrize(
    ("grammar", "token"),
    [
        ('start: "ab" {}', "</s>"),
        ("start: {}", "</s>"),
        ("start: {}", "<|end|>"),
        ('start: x*\nx: "a" {} | "b"', "<|end|>"),
        ("start: {} /a/", "<[5]>"),
        ("start: {}", "<[^5-9]>"),
        ("start: a\na: /a/ {} /b/", "<nothing>"),
    ],
)
def test_tokens_by_name(compiler: HelperCompiler, grammar: str, token: str) -> None:  # S15
    """One that ends an answer would end it before its grammar does, and others are no text."""
    error = compiler.compile(StructuredOutput(ebnf=grammar.format(token))).exception(PATIENCE)
    why = f"it names the token {token}, but an answer is text, and ends where its grammar does"
    assert str(error) == f"structured.ebnf cannot be used: {why}; {LARK}"


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('start: "<a>"', "<a>"),
        ("start: /<[a-c]>/ // <a>", "<b>"),
        ("start: A # <a>\nA: /[^\\/<]<a>/", "x<a>"),
        ('start: "a\\"<b>"', 'a"<b>'),
        ('root ::= "<b>" [^<>] "</b>"', "<b>x</b>"),
        ('start: %json {"const": "<a>"}', '"<a>"'),
        ('start: "%json {" /a/ // %json {"not": {}}', "%json {a"),
        ('start[capture]: "a\\u007f"', "a\x7f"),
    ],
)
def test_text_that_looks_like_a_token(compiled: Compile, tokenizer: Tokenizer, grammar: str, text: str) -> None:
    assert accepts(compiled(StructuredOutput(ebnf=grammar)), tokenizer, text)


@pytest.mark.parametrize(
    "structured",
    [
        StructuredOutput(ebnf="start: " + "(" * 3000 + '"a"' + ")" * 3000),
        StructuredOutput(regex="(" * 5000 + "a" + ")" * 5000),
        StructuredOutput.of_schema(
            {"allOf": [{"anyOf": [{"properties": {f"p{n}": {"type": "integer"}}} for n in range(40)]}] * 8}
        ),
        StructuredOutput.of_schema({"allOf": [{"type": "integer", "multipleOf": n} for n in (99991, 99989, 99971)]}),
    ],
    ids=["deep grammar", "deep regex", "product of schemas", "huge automaton"],
)
def test_bombs_are_refused_in_one_line(compiler: HelperCompiler, structured: StructuredOutput) -> None:
    error = compiler.compile(structured).exception(PATIENCE)
    assert isinstance(error, GrammarFailed)
    assert not isinstance(error, GrammarUnavailable)
    assert "cannot be used: " in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) <= 600


@pytest.mark.parametrize(
    "structured",
    [
        StructuredOutput(regex="((a{1,1000}){1,1000}){1,1000}"),
        StructuredOutput(regex="(.*a.{20})"),
        StructuredOutput(regex="(x+x+)+y"),
        StructuredOutput.of_schema({"type": "array", "minItems": 1000, "maxItems": 10**9, "items": {"type": "null"}}),
        StructuredOutput.of_schema({"type": "string", "pattern": "^(.*a.{25}){10}$"}),
    ],
)
def test_repeats_cost_little_at_each_token(compiled: Compile, structured: StructuredOutput) -> None:
    """Whether it is followed to its end or not: the library's own limits stop it, and it says so."""
    state = compiled(structured)
    for _ in range(50):
        mask = tokens_of(state.mask())
        if state.error or not mask:
            break
        state.accept((min(mask),))
    assert state.error.count("\n") == 0


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        (
            "%json {LENIENT, 'uniqueItems': true}",
            'at 1(8): failed to compile JSON schema: Unimplemented keys: ["uniqueItems"]',
        ),
        ("'a' %json {LENIENT, 'not': {}}", 'at 1(8): failed to compile JSON schema: Unimplemented keys: ["not"]'),
        ("%json {'maximum': 9007199254740993}", "it has the number 9007199254740993, which the library rounds to"),
        ("%json {\n'const': 1\n} b\nb: c", 'at 4(4): unknown name: "c"'),
    ],
)
def test_a_schema_in_a_grammar_keeps_what_it_says(compiler: HelperCompiler, grammar: str, why: str) -> None:
    """Whatever it asks of the library for itself; and places are those of the client's text."""
    text = grammar.replace("LENIENT", "'x-guidance': {'lenient': true}").replace("'", '"')
    error = compiler.compile(StructuredOutput(ebnf=f"start: {text}")).exception(PATIENCE)
    assert str(error).startswith(f"structured.ebnf cannot be used: {why}")


def test_json_in_a_grammar_has_no_space_between_its_parts(compiled: Compile, tokenizer: Tokenizer) -> None:
    for schema in ('{"type": "array", "x-guidance": {"whitespace_flexible": true}}', "true", "{}"):
        state = compiled(StructuredOutput(ebnf=f'start: "a" %json {schema} "b"'))
        assert accepts(state, tokenizer, "a[1,2]b")
        assert not accepts(state, tokenizer, "a[1, 2]b")


LONG = "the quick brown fox " * 1500


@pytest.mark.parametrize(
    ("structured", "begins"),
    [
        (StructuredOutput(choice=(LONG,)), LONG),
        (StructuredOutput.of_schema({"const": LONG}), f'"{LONG}'),
        (StructuredOutput(tools=(ToolSchema.of("a", {"properties": {LONG: {}}, "required": [LONG]}),)), '{"name":"a"'),
        (StructuredOutput(regex="(ab){9999}"), "abab"),
        (StructuredOutput(regex="((a{100}){100}){100}"), "aaaa"),
        (
            StructuredOutput.of_schema(
                {"properties": {"n": {"$ref": "#"}}, "required": ["n"], "type": "object", "additionalProperties": False}
            ),
            '{"n":{"n":',
        ),
    ],
    ids=["choice", "const", "tool", "repeat", "repeats", "without end"],
)
def test_a_long_text_that_must_come_is_not_cut_anew_for_each_mask(
    compiled: Compile, tokenizer: Tokenizer, structured: StructuredOutput, begins: str
) -> None:
    """It comes in whatever tokens make it up; else each mask would take as long as it takes to tokenize all of it."""
    state, text = compiled(structured), ""
    assert "no_forcing" in _definition(tokenizer, structured)
    for _ in range(40):
        mask = tokens_of(state.mask())
        assert state.error == ""
        text += tokenizer.decode([max(mask)])
        assert state.accept((max(mask),)) == 1
    assert begins.startswith(text) or text.startswith(begins)


def _definition(tokenizer: Tokenizer, structured: StructuredOutput) -> str:
    """What the child answers for it."""
    asked = {"vocab_size": tokenizer.vocab_size, "eos_token_ids": [eos_of(tokenizer)], "tokenizer": tokenizer.to_json()}
    assert _child.handle(asked) == {}
    kind, value = form_of(structured)
    return str(_child.handle({"kind": kind, "value": value, "seconds": PATIENCE})["definition"])


@pytest.mark.parametrize(
    "structured",
    [
        StructuredOutput.of_schema(CITY),
        StructuredOutput(regex="[0-9]{4}-[a-z]{1,999}"),
        StructuredOutput(choice=("yes", "no")),
        StructuredOutput(tools=(ToolSchema(name="now"),)),
    ],
)
def test_what_is_short_comes_as_the_tokenizer_cuts_it(tokenizer: Tokenizer, structured: StructuredOutput) -> None:
    assert "no_forcing" not in _definition(tokenizer, structured)


WORDS = "yes|([a-z]{1,10} ?){1,400}"


@pytest.mark.parametrize(
    "structured",
    [
        StructuredOutput(regex=f"{WORDS}"),
        StructuredOutput(ebnf=f"start: /{WORDS}/"),
        StructuredOutput.of_schema({"type": "string", "pattern": f"^({WORDS})$"}),
    ],
    ids=["regex", "ebnf", "json_schema"],
)
def test_what_one_answer_uses_up_is_no_others(  # S15
    compiled: Compile, tokenizer: Tokenizer, structured: StructuredOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one shape: one that is open, and one that begins later, stand where they would if there were no other."""
    monkeypatch.setattr(_llguidance, "_MOST_LEXER_STATES", 300)  # so that the test is short
    used_up, beside, alone = (compiled(structured) for _ in range(3))
    answer = tokenizer.encode('"yes"' if structured.json_schema else "yes")
    seen = [alone.mask(), *(_after(alone, token) for token in answer)]
    _use_up(used_up)
    later = compiled(structured)
    for state in (beside, later):
        assert [state.mask(), *(_after(state, token) for token in answer)] == seen
        assert state.error == ""
        assert state.is_complete


def _after(state: GrammarState, token: int) -> bytes:
    assert state.accept((token,)) == 1, state.error
    return state.mask()


def _use_up(state: GrammarState) -> None:
    """Draw until it cannot go on, again and again from the beginning."""
    for seed in range(300):
        copy, numbers = state.copy(), random.Random(seed)
        for _ in range(150):
            allowed = sorted(tokens_of(copy.mask()))
            if copy.error:
                return
            if not copy.accept((numbers.choice(allowed),)):
                break  # the end
    raise AssertionError("it goes on")


def test_a_vocabulary_with_bytes_for_what_is_unknown() -> None:
    tokenizer = sentencepiece_like(legacy=True)
    compiler = compiler_of(tokenizer)
    try:
        state = compiler.compile(StructuredOutput(regex="the [a-c]é")).result(PATIENCE)
    finally:
        compiler.close()
    tokens = {tokenizer.token(token) for token in tokens_of(state.mask())}
    assert tokens == {"th", "▁the"}, (
        "what can only be one text comes as the tokenizer cuts it, with its space or without"
    )
    vocabulary = {tokenizer.token(token): token for token in range(tokenizer.vocab_size)}
    answer = [vocabulary[piece] for piece in ("th", "e", "▁a", "<0xC3>", "<0xA9>")]
    assert state.accept(answer) == len(answer)
    assert tokens_of(state.mask()) == {eos_of(tokenizer)}


def test_a_vocabulary_whose_tokens_have_no_text_of_their_own() -> None:
    compiler = compiler_of(wordpiece())
    try:
        error = compiler.compile(StructuredOutput(regex="a")).exception(PATIENCE)
    finally:
        compiler.close()
    assert isinstance(error, GrammarFailed)
    assert not isinstance(error, GrammarUnavailable), "it is so for good"
    assert (error.param, str(error)) == (
        "structured",
        (
            "structured does not work with the model's tokenizer: its decoder has WordPiece, and must be ByteLevel, "
            "Metaspace, or a sequence of Replace, ByteFallback, Fuse and Strip; leave it out"
        ),
    )


def test_a_model_whose_answers_never_end() -> None:
    compiler = HelperCompiler(system_runtime(), tokenizer=lambda: "", vocab_size=9, eos_token_ids=())
    try:
        error = compiler.compile(StructuredOutput(regex="a")).exception(0)
    finally:
        compiler.close()
    assert str(error) == "structured needs a model with a token that ends an answer: leave it out"


def test_tokens_that_are_none(compiled: Compile, tokenizer: Tokenizer) -> None:
    state = compiled(StructuredOutput(regex="a"))
    assert state.accept((-1,)) == state.accept((10**9,)) == state.accept((tokenizer.vocab_size + 1,)) == 0
    assert state.error == ""
    assert json.dumps(sorted(tokens_of(state.mask()))) == json.dumps(tokenizer.encode("a"))
