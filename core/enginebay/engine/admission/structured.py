"""What may be asked of an answer's shape: one form, and how large it may be. Whether it compiles is found out later."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from enginebay.engine.admission.checks import check_sequence, check_unicode, is_text, kind_of, refuse, shown
from enginebay.engine.admission.plain import plain
from enginebay.messages import SamplingParams, StructuredOutput, ToolSchema

__all__ = ["check_structured", "plain_structured"]

_FORMS: Final = ("json_schema", "regex", "ebnf", "choice", "tools")
_MAX_BYTES: Final = 64 * 1024
"""Of all texts of the shape together."""
_MAX_DEPTH: Final = 64
_MAX_REPEATS: Final = 10_000
_MAX_CHOICES: Final = 1024
_MAX_TOOLS: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_REPEATS: Final = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")
_LEAST: Final = frozenset({"minItems", "minLength", "minProperties", "minContains"})


def plain_structured(value: object) -> Any:
    """The same of built-in types; a list becomes a tuple. What is no shape stays, and is refused by whoever looks."""
    if not isinstance(value, StructuredOutput):
        return value
    tools = plain(value.tools)
    if type(tools) is tuple:
        tools = tuple(
            ToolSchema(name=plain(tool.name), parameters=plain(tool.parameters))
            if isinstance(tool, ToolSchema)
            else tool
            for tool in tools
        )
    return StructuredOutput(
        json_schema=plain(value.json_schema),
        regex=plain(value.regex),
        ebnf=plain(value.ebnf),
        choice=plain(value.choice),
        tools=tools,
    )


def check_structured(params: SamplingParams) -> None:
    """Raise ``InvalidRequest`` with the field at fault. Bounded work."""
    structured = params.structured
    if structured is None:
        return
    if not isinstance(structured, StructuredOutput):
        raise refuse("structured", f"structured must be StructuredOutput, not {kind_of(structured)}")
    given = [form for form in _FORMS if not _is_unset(getattr(structured, form))]
    if len(given) != 1:
        has = f"{len(given)} ({', '.join(given)})" if given else "none"
        raise refuse("structured", f"structured must have one of {', '.join(_FORMS)}, and has {has}")
    if params.ignore_eos:
        raise refuse(
            "ignore_eos", "ignore_eos cannot be set with structured: an answer ends when its shape is complete"
        )
    _CHECKS[given[0]](getattr(structured, given[0]))


def _is_unset(value: object) -> bool:
    return value is None or (type(value) is tuple and not value)


def _check_schema(schema: str) -> None:
    _check_text("structured.json_schema", schema)
    _check_json("structured.json_schema", schema)


def _check_pattern(name: str, text: str) -> None:
    _check_text(name, text)
    for found in _REPEATS.finditer(text):
        for digits in found.groups():
            if digits and (len(digits) > len(str(_MAX_REPEATS)) or int(digits) > _MAX_REPEATS):
                raise refuse(
                    name, f"{name} repeats something {shown(digits)} times; at most {_MAX_REPEATS} are allowed"
                )


def _check_choice(choices: tuple[str, ...]) -> None:
    name = "structured.choice"
    check_sequence(name, choices)
    if len(choices) > _MAX_CHOICES:
        raise refuse(name, f"{name} has {len(choices)} texts; at most {_MAX_CHOICES} are allowed")
    for choice in choices:
        _check_text(name, choice)
    _check_size(name, choices)


def _check_tools(tools: tuple[ToolSchema, ...]) -> None:
    name = "structured.tools"
    check_sequence(name, tools)
    if len(tools) > _MAX_TOOLS:
        raise refuse(name, f"{name} has {len(tools)} tools; at most {_MAX_TOOLS} are allowed")
    for tool in tools:
        if not isinstance(tool, ToolSchema):
            raise refuse(name, f"{name} must hold ToolSchema, not {kind_of(tool)}")
        if type(tool.name) is not str or not _NAME.fullmatch(tool.name):
            raise refuse(
                name,
                f"a tool's name must be 1 to 64 letters, digits, dots, dashes or underscores, not {shown(tool.name)}",
            )
        where = f"{name} ({tool.name})"
        _check_text(name, tool.parameters)
        schema = _check_json(name, tool.parameters)
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            raise refuse(name, f"{where}: its parameters must be a JSON schema of an object")
    names = [tool.name for tool in tools]
    if twice := next((one for one in names if names.count(one) > 1), None):
        raise refuse(name, f"{name} has two tools called {twice!r}")
    _check_size(name, [tool.parameters for tool in tools])


def _check_text(name: str, text: object) -> None:
    if not is_text(text):
        raise refuse(name, f"{name} must be text that is not empty, not {shown(text)}")
    assert isinstance(text, str), "it is text"
    _check_size(name, [text])
    check_unicode(name, text)
    if "\0" in text:
        raise refuse(name, f"{name} has a NUL character at {text.index(chr(0))}")


def _check_size(name: str, texts: Sequence[str]) -> None:
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if size > _MAX_BYTES:
        raise refuse(name, f"{name} has {size} bytes; at most {_MAX_BYTES} are allowed")


def _check_json(name: str, text: str) -> Any:
    """The value that a schema's text stands for."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(name, f"{name} is no JSON: {shown(str(error) or type(error).__name__)[1:-1]}") from None
    if not isinstance(value, dict | bool):
        raise refuse(name, f"{name} must be a JSON schema, an object, not {shown(value)}")
    todo: list[tuple[Any, int]] = [(value, 1)]
    while todo:
        node, depth = todo.pop()
        if depth > _MAX_DEPTH:
            raise refuse(name, f"{name} is nested more than {_MAX_DEPTH} deep")
        if isinstance(node, dict):
            for key, inner in node.items():
                if key in _LEAST and isinstance(inner, int | float) and inner > _MAX_REPEATS:
                    raise refuse(name, f"{name} has {key} {shown(inner)}; at most {_MAX_REPEATS} is allowed")
            todo += [(inner, depth + 1) for inner in node.values() if isinstance(inner, dict | list)]
        elif isinstance(node, list):
            todo += [(inner, depth + 1) for inner in node if isinstance(inner, dict | list)]
    return value


_CHECKS: Final[dict[str, Any]] = {
    "json_schema": _check_schema,
    "regex": lambda text: _check_pattern("structured.regex", text),
    "ebnf": lambda text: _check_pattern("structured.ebnf", text),
    "choice": _check_choice,
    "tools": _check_tools,
}
