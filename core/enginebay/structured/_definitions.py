"""A request's wish in the library's own words: one text that defines a grammar. Where that fails, it raises."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from enginebay.messages import StructuredOutput
from enginebay.structured._schema_faults import schema_fault

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

__all__ = ["behind_space", "definition_of", "form_of", "may_force_much", "unforced"]

_FREELY: Final = '%llguidance {"no_forcing": true}\n'
_FREES: Final = json.dumps(_FREELY)[1:-1]
_MOST_FORCED: Final = 4096
"""Characters: cutting so many into tokens takes some milliseconds, at each mask and for all requests of the step."""
_MANY_TIMES: Final = 1000
_NAMED_TOKEN: Final = re.compile(r"<[^<>\s]*>")
_QUOTED: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|(?://|#)[^\n]*|/(?:[^/\\\n]|\\.)*/')
"""Strings, comments and regular expressions of a Lark grammar."""
_SCHEMA_OR_QUOTED: Final = re.compile(rf"(%json\s*)|{_QUOTED.pattern}")
_TIMES: Final = re.compile(r"\{\s*(\d+)")
_AT_LEAST: Final = re.compile(r'"min\w+"\s*:\s*(\d+)')

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
            return _of_lark(_of_text(any_to_lark(value) if "::=" in value else value))
        case "choice":
            return _of_lark("start: " + " | ".join(map(_literal, value)))
    return _of_tools(value)


def behind_space(definition: str) -> str:
    """The same answers, each with a space before it."""
    return _led_by("spaced", definition, _FREELY if _FREES in definition else "", '" "')


def unforced(definition: str) -> str:
    """The same answers; where only one text can come next, it comes in whatever tokens make it up.

    Else the library cuts that text into tokens anew for each mask, all of it, however long it is.
    """
    return _led_by("free", definition, _FREELY, "")


def may_force_much(kind: str, value: Any) -> bool:
    """Whether a text that can alone come next may be long: its length is bounded by what is written, and repeats."""
    texts = (
        [value] if isinstance(value, str) else [text for one in value for text in ([one] if kind == "choice" else one)]
    )
    if sum(map(len, texts)) > _MOST_FORCED:
        return True
    if kind in ("regex", "ebnf"):
        return math.prod(max(1, int(count)) for count in _TIMES.findall(value)) >= _MANY_TIMES
    return any(int(count) >= _MANY_TIMES for text in texts for count in _AT_LEAST.findall(text))


def _led_by(name: str, definition: str, options: str, before: str) -> str:
    whole: dict[str, Any] = json.loads(definition)
    first, *others = whole["grammars"]
    answer = first.get("name") or f"after_{name}"
    start = {"name": name, "lark_grammar": f"{options}start: {before} @{answer}"}
    return json.dumps(whole | {"grammars": [start, first | {"name": answer}, *others]})


def _of_text(grammar: str) -> str:
    """The Lark grammar, if it names no token: one that ends an answer would end it before its grammar does."""
    named = _NAMED_TOKEN.search(_QUOTED.sub(" ", grammar))
    if named is not None:
        raise ValueError(f"it names the token {named[0]}, but an answer is text, and ends where its grammar does")
    return _with_rules(grammar)


def _with_rules(grammar: str) -> str:
    """The same; the schemas in it are kept as others are."""
    kept, end = "", 0
    while (found := _SCHEMA_OR_QUOTED.search(grammar, end)) is not None:
        kept, end = kept + grammar[end : found.end()], found.end()
        if found[1]:
            with suppress(json.JSONDecodeError):  # the library says what is wrong with it
                schema, end = json.JSONDecoder().raw_decode(grammar, end)
                if fault := schema_fault(schema):
                    raise ValueError(fault)
                whole = (schema if isinstance(schema, dict) else {"allOf": [schema]}) | {"x-guidance": _JSON_RULES}
                lines = "\n" * grammar.count(
                    "\n", found.end(), end
                )  # the library tells places in the client's own text
                kept += lines + json.dumps(whole)
    return kept + grammar[end:]


def _of_lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _of_schema(schema: str) -> str:
    from llguidance import LLMatcher

    if schema.strip() == "false":
        raise ValueError("no answer fits it")
    text = "{}" if schema.strip() == "true" else schema
    if fault := schema_fault(json.loads(text)):
        raise ValueError(fault)
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
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # which the library's lexer does not read
