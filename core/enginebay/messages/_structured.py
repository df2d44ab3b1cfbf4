"""What shape an answer must have: exactly one of a JSON schema, a regex, a grammar, a choice, or a call of a tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

__all__ = ["StructuredOutput", "ToolSchema"]


class ToolSchema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call: its name, and the JSON schema (as text) of its arguments, an object."""

    name: str
    parameters: str = "{}"

    @classmethod
    def of(cls, name: str, parameters: Mapping[str, Any]) -> ToolSchema:
        """The same of a schema that is an object, as ``json.loads`` makes it."""
        return cls(name=name, parameters=json.dumps(parameters))


class StructuredOutput(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of an answer; exactly one field is set.

    ``json_schema`` is a JSON schema as text: the answer is one JSON value that it accepts, without white space
    between its parts (``"{}"``: any value). ``regex`` must match the whole answer. ``ebnf`` is a grammar: Lark,
    from its rule ``start``, or GBNF, from its rule ``root``. ``choice`` are texts of which the answer is one.
    ``tools`` are functions of which the answer calls exactly one: ``{"name":"…","arguments":{…}}``. What a request
    may ask of each is checked when it comes. Workers get it with no field set: they are told that there is a shape, by
    ``NewRequest.params``, and by masks what it allows.
    """

    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    choice: tuple[str, ...] = ()
    tools: tuple[ToolSchema, ...] = ()

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any]) -> StructuredOutput:
        """The shape of a JSON schema that is an object, as ``json.loads`` makes it."""
        return cls(json_schema=json.dumps(schema))
