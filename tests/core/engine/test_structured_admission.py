"""What may be asked of an answer's shape: one form, of a bounded size, and a runner that serves it."""  # E4

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from enginebay.engine.admission.admit import AdmissionLimits, Ask, validate
from enginebay.errors import InvalidRequest
from enginebay.messages import SamplingParams, StructuredOutput, ToolSchema

LIMITS = AdmissionLimits(
    vocab_size=300,
    runner="runner 'fake' 1.0",
    features=frozenset({"grammar", "n"}),
    check_fits=lambda prompt, most: None,
)


def passed(structured: Any, limits: AdmissionLimits = LIMITS, **params: Any) -> StructuredOutput:
    ask = Ask(request_id="r", prompt_token_ids=(1,), params=SamplingParams(structured=structured, **params))
    found = validate(ask, limits).params.structured
    assert found is not None
    return found


def refused(structured: Any, limits: AdmissionLimits = LIMITS, **params: Any) -> tuple[str | None, str]:
    with pytest.raises(InvalidRequest) as caught:
        passed(structured, limits, **params)
    assert "\n" not in str(caught.value)
    return caught.value.param, str(caught.value)


@pytest.mark.parametrize(
    "structured",
    [
        StructuredOutput(json_schema="{}"),
        StructuredOutput(json_schema="true"),
        StructuredOutput.of_schema({"type": "string", "maxLength": 2**31 - 1, "minLength": 10_000}),
        StructuredOutput(regex="a{10000}"),
        StructuredOutput(ebnf='start: "a"'),
        StructuredOutput(choice=("x",) * 1024),
        StructuredOutput(tools=tuple(ToolSchema(name=f"tool_{n}") for n in range(128))),
        StructuredOutput(json_schema='{"a":' * 63 + "{}" + "}" * 63),
        StructuredOutput(regex="é" * 32 * 1024),
    ],
)
def test_all_at_their_limits_pass(structured: StructuredOutput) -> None:
    assert passed(structured) == structured


def test_lists_and_strings_of_other_types_are_made_plain() -> None:
    class Text(str):
        __slots__ = ()

    tool = ToolSchema(name=Text("a"), parameters=Text("{}"))
    found = passed(StructuredOutput(tools=[tool]))  # type: ignore[arg-type]  # as a client brings it
    assert found == StructuredOutput(tools=(ToolSchema(name="a"),))
    assert (type(found.tools[0].name), type(found.tools[0].parameters)) == (str, str)
    assert passed(StructuredOutput(choice=["a", Text("b")])).choice == ("a", "b")  # type: ignore[arg-type]  # see above


@pytest.mark.parametrize(
    ("structured", "param", "message"),
    [
        (
            {"regex": "a"},
            "structured",
            "structured must be StructuredOutput, not dict",
        ),
        (
            StructuredOutput(),
            "structured",
            "structured must have one of json_schema, regex, ebnf, choice, tools, and has none",
        ),
        (
            StructuredOutput(regex="a", choice=("b",)),
            "structured",
            "structured must have one of json_schema, regex, ebnf, choice, tools, and has 2 (regex, choice)",
        ),
        (
            StructuredOutput(regex=""),
            "structured.regex",
            "structured.regex must be text that is not empty, not ''",
        ),
        (
            StructuredOutput(json_schema={"type": "object"}),  # type: ignore[arg-type]  # a likely slip
            "structured.json_schema",
            "structured.json_schema must be text that is not empty, not {'type': 'object'}",
        ),
        (
            StructuredOutput(json_schema="{"),
            "structured.json_schema",
            (
                "structured.json_schema is no JSON: "
                "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
            ),
        ),
        (
            StructuredOutput(json_schema="[]"),
            "structured.json_schema",
            "structured.json_schema must be a JSON schema, an object, not []",
        ),
        (
            StructuredOutput(json_schema="[" * 30_000 + "]" * 30_000),
            "structured.json_schema",
            None,
        ),
        (
            StructuredOutput(json_schema='{"a":' * 64 + "{}" + "}" * 64),
            "structured.json_schema",
            "structured.json_schema is nested more than 64 deep",
        ),
        (
            StructuredOutput.of_schema({"items": {"minItems": 10_001}}),
            "structured.json_schema",
            "structured.json_schema has minItems 10001; at most 10000 is allowed",
        ),
        (
            StructuredOutput(regex="é" * 32 * 1024 + "a"),
            "structured.regex",
            "structured.regex has 65537 bytes; at most 65536 are allowed",
        ),
        (
            StructuredOutput(regex="(a{1, 99999999999999999999}){2}"),
            "structured.regex",
            "structured.regex repeats something '99999999999999999999' times; at most 10000 are allowed",
        ),
        (
            StructuredOutput(ebnf='start: "a"{10001}'),
            "structured.ebnf",
            "structured.ebnf repeats something '10001' times; at most 10000 are allowed",
        ),
        (
            StructuredOutput(regex="a\ud800"),
            "structured.regex",
            "structured.regex has a lone surrogate at character 1 ('a\\ud800'): it is no Unicode text",
        ),
        (
            StructuredOutput(regex="a\0"),
            "structured.regex",
            "structured.regex has a NUL character at 1",
        ),
        (
            StructuredOutput(choice=("a",) * 1025),
            "structured.choice",
            "structured.choice has 1025 texts; at most 1024 are allowed",
        ),
        (
            StructuredOutput(choice=("a", "")),
            "structured.choice",
            "structured.choice must be text that is not empty, not ''",
        ),
        (
            StructuredOutput(choice="yes"),  # type: ignore[arg-type]  # a likely slip
            "structured.choice",
            "structured.choice must be a tuple, not str",
        ),
        (
            StructuredOutput(tools=(ToolSchema(name="a b"),)),
            "structured.tools",
            "a tool's name must be 1 to 64 letters, digits, dots, dashes or underscores, not 'a b'",
        ),
        (
            StructuredOutput(tools=(ToolSchema(name="a"), ToolSchema(name="a"))),
            "structured.tools",
            "structured.tools has two tools called 'a'",
        ),
        (
            StructuredOutput(tools=(ToolSchema.of("a", {"type": "array"}),)),
            "structured.tools",
            "structured.tools (a): its parameters must be a JSON schema of an object",
        ),
        (
            StructuredOutput(tools=({"name": "a"},)),  # type: ignore[arg-type]  # a likely slip
            "structured.tools",
            "structured.tools must hold ToolSchema, not dict",
        ),
        (
            StructuredOutput(tools=tuple(ToolSchema(name=f"t{n}") for n in range(129))),
            "structured.tools",
            "structured.tools has 129 tools; at most 128 are allowed",
        ),
    ],
)
def test_what_is_refused(structured: Any, param: str, message: str | None) -> None:
    found = refused(structured)
    assert found[0] == param
    assert message is None or found[1] == message


def test_an_answer_ends_when_its_shape_does() -> None:
    assert refused(StructuredOutput(regex="a"), ignore_eos=True) == (
        "ignore_eos",
        "ignore_eos cannot be set with structured: an answer ends when its shape is complete",
    )


def test_a_runner_without_grammars() -> None:
    limits = dataclasses.replace(LIMITS, features=frozenset({"n", "seed"}))
    assert refused(StructuredOutput(regex="a"), limits) == (
        "structured",
        "runner 'fake' 1.0 does not serve structured; it serves: n, seed",
    )


def test_a_schema_may_come_as_an_object() -> None:
    schema = {"type": "object", "title": "é"}
    assert json.loads(StructuredOutput.of_schema(schema).json_schema or "") == schema
    assert json.loads(ToolSchema.of("a", schema).parameters) == schema
