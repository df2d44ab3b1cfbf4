"""A request's wish in the library's own words: one text that defines a grammar. Where that fails, it raises."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from enginebay.messages import StructuredOutput

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

__all__ = ["definition_of", "form_of"]

_JSON_RULES: JsonCompileOptions = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "coerce_one_of": False,
    "lenient": False,
}
"""They win over what a schema says under ``x-guidance``.

Decision: no white space between the parts, since a small model can write it without end; and a keyword that is not
understood is refused, since the answer would be promised to satisfy it. A violating change sets ``lenient``.
"""


def form_of(structured: StructuredOutput) -> tuple[str, Any]:
    """The one form that is set, and its value, of plain types that JSON can write."""
    if structured.json_schema is not None:
        return "json_schema", structured.json_schema
    if structured.regex is not None:
        return "regex", structured.regex
    if structured.ebnf is not None:
        return "ebnf", structured.ebnf
    if structured.choice:
        return "choice", list(structured.choice)
    return "tools", [[tool.name, tool.parameters] for tool in structured.tools]


def definition_of(kind: str, value: Any) -> str:
    """The library's definition of one form. Raises ``ValueError`` for what it cannot read; most is found later."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    match kind:
        case "json_schema":
            return _of_schema(value)
        case "regex":
            return str(LLMatcher.grammar_from_regex(value))
        case "ebnf":
            return str(LLMatcher.grammar_from_lark(any_to_lark(value)))
        case "choice":
            return str(LLMatcher.grammar_from_lark("start: " + " | ".join(map(_literal, value))))
    return _of_tools(value)


def _of_schema(schema: str) -> str:
    from llguidance import LLMatcher

    text = {"true": "{}", "false": '{"not":{}}'}.get(schema.strip(), schema)
    return str(LLMatcher.grammar_from_json_schema(text, overrides=_JSON_RULES))


def _of_tools(tools: list[tuple[str, str]]) -> str:
    """Each tool's schema is a grammar of its own, so that its references are its own, too."""
    calls, grammars = [], []
    for number, (name, parameters) in enumerate(tools):
        schema = json.loads(parameters)
        whole = json.loads(_of_schema(json.dumps({"type": "object"} | schema)))
        grammars.append(whole["grammars"][0] | {"name": f"arguments{number}"})
        head = f'{{"name":{json.dumps(name, ensure_ascii=False)},"arguments":'
        calls.append(f"{_literal(head)} @arguments{number} {_literal('}')}")
    start = {"name": "call", "lark_grammar": "start: " + " | ".join(calls)}
    return json.dumps({"grammars": [start, *grammars]})


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
