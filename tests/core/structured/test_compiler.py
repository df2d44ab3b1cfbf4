"""Compiling in a process that may die of it: every form, what is refused, the limits, and the end."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import CancelledError

import pytest

from enginebay.messages import StructuredOutput, ToolSchema
from enginebay.runtime import system_runtime
from enginebay.structured import GrammarFailed, GrammarUnavailable, HelperCompiler
from enginebay.text import Tokenizer
from support.tiny_tokenizers import metaspace, sentencepiece_like

from .conftest import PATIENCE, Compile, accepts, compiler_of, eos_of, tokens_of

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/name"}}, "required": ["city"]}
CITY |= {"additionalProperties": False, "$defs": {"name": {"type": "string", "maxLength": 9}}}
REGEX = "its regex cannot be used: "


def chain(length: int) -> str:
    """A grammar of rules that each lead to the next: the library recurses once for each."""
    rules = [f'r{i}: "a" r{i + 1} | "b" r{i + 2}' for i in range(length)]
    return "\n".join(["start: r0", *rules, f'r{length}: "x"', f'r{length + 1}: "y"'])


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
        (StructuredOutput(json_schema='{"type":"objec"}'), "its json_schema cannot be used: Invalid type: objec"),
        (StructuredOutput(json_schema='{"not":{}}'), 'its json_schema cannot be used: Unimplemented keys: ["not"]'),
        (
            StructuredOutput(json_schema='{"not":{},"x-guidance":{"lenient":true}}'),
            'its json_schema cannot be used: Unimplemented keys: ["not"]',
        ),
        (
            StructuredOutput(json_schema='{"type":"integer","minimum":5,"maximum":3}'),
            "its json_schema cannot be used: Unsatisfiable schema: minimum (5) is greater than maximum (3)",
        ),
        (
            StructuredOutput(json_schema='{"$ref":"#"}'),
            "its json_schema cannot be used: no answer fits it (NoExtensionBias)",
        ),
        (
            StructuredOutput(regex="(a"),
            REGEX + 'at 1(8): invalid regex "(a" (in regex): regex parse error: error: unclosed group',
        ),
        (StructuredOutput(ebnf="start: nothing"), 'its ebnf cannot be used: at 1(8): unknown name: "nothing"'),
    ],
)
def test_what_cannot_be_compiled(compiler: HelperCompiler, structured: StructuredOutput, why: str) -> None:  # S15
    error = compiler.compile(structured).exception(PATIENCE)
    assert (type(error), str(error)) == (GrammarFailed, why)


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


def test_it_goes_on_after_a_child_that_died(own_compiler: HelperCompiler) -> None:
    error = own_compiler.compile(StructuredOutput(ebnf=chain(4000))).exception(PATIENCE)
    assert str(error) == "its ebnf cannot be used: compiling it was killed by SIGSEGV"
    assert own_compiler.compile(StructuredOutput(regex="a")).exception(PATIENCE) is None


def test_one_that_takes_too_long(tokenizer: Tokenizer) -> None:
    compiler = compiler_of(tokenizer, seconds=0.0)
    try:
        error = compiler.compile(StructuredOutput(regex="a")).exception(PATIENCE)
        assert str(error) == "its regex cannot be used: compiling it took longer than 0 s and was stopped"
    finally:
        compiler.close()


def test_one_that_takes_too_much_memory(tokenizer: Tokenizer) -> None:
    compiler = compiler_of(tokenizer, memory=16 << 20)
    try:
        error = compiler.compile(StructuredOutput.of_schema({"multipleOf": 99991})).exception(PATIENCE)
    finally:
        compiler.close()
    assert str(error) == "its json_schema cannot be used: compiling it was killed by SIGABRT (out of memory?)"


def test_what_is_cancelled_is_not_compiled(own_compiler: HelperCompiler) -> None:
    first, second, third = (own_compiler.compile(StructuredOutput(regex=letter)) for letter in "abc")
    assert second.cancel(), "the first is still being compiled: its child has yet to start"
    assert third.exception(PATIENCE) is None
    assert first.exception() is None
    with pytest.raises(CancelledError):
        second.result(0)


def test_the_end_while_it_compiles(tokenizer: Tokenizer) -> None:
    compiler = compiler_of(tokenizer)
    futures = [compiler.compile(StructuredOutput(regex=f"a{n}")) for n in range(3)]
    compiler.close()
    compiler.close()
    for future in [*futures, compiler.compile(StructuredOutput(regex="a"))]:
        assert isinstance(future.exception(PATIENCE), GrammarUnavailable)
    assert compiler._helper.pid is None


def test_a_child_that_is_killed_between_calls(own_compiler: HelperCompiler) -> None:
    assert own_compiler.compile(StructuredOutput(regex="a1")).exception(PATIENCE) is None
    pid = own_compiler._helper.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert own_compiler.compile(StructuredOutput(regex="a2")).exception(PATIENCE) is None


def test_a_vocabulary_with_bytes_for_what_is_unknown() -> None:
    tokenizer = sentencepiece_like(legacy=True)
    compiler = compiler_of(tokenizer)
    try:
        state = compiler.compile(StructuredOutput(regex="the [a-c]é")).result(PATIENCE)
    finally:
        compiler.close()
    tokens = {tokenizer.token(token) for token in tokens_of(state.mask())}
    assert tokens == {"th"}, "what can only be one text comes as the tokenizer cuts it"
    vocabulary = {tokenizer.token(token): token for token in range(tokenizer.vocab_size)}
    answer = [vocabulary[piece] for piece in ("th", "e", "▁a", "<0xC3>", "<0xA9>")]
    assert state.accept(answer) == len(answer)
    assert tokens_of(state.mask()) == {eos_of(tokenizer)}


def test_a_vocabulary_that_the_library_cannot_read() -> None:
    compiler = compiler_of(metaspace())
    try:
        error = compiler.compile(StructuredOutput(regex="a")).exception(PATIENCE)
    finally:
        compiler.close()
    assert isinstance(error, GrammarUnavailable)
    assert str(error).startswith("no grammar works with the model's tokenizer: can't determine decoder type")


def test_a_model_whose_answers_never_end() -> None:
    compiler = HelperCompiler(system_runtime(), tokenizer=lambda: "", vocab_size=9, eos_token_ids=())
    try:
        error = compiler.compile(StructuredOutput(regex="a")).exception(0)
    finally:
        compiler.close()
    assert str(error) == "the model has no token that ends an answer"


def test_tokens_that_are_none(compiled: Compile, tokenizer: Tokenizer) -> None:
    state = compiled(StructuredOutput(regex="a"))
    assert state.accept((-1,)) == state.accept((10**9,)) == state.accept((tokenizer.vocab_size + 1,)) == 0
    assert state.error == ""
    assert json.dumps(sorted(tokens_of(state.mask()))) == json.dumps(tokenizer.encode("a"))
