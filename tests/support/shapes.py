"""JSON schemas as applications have them, each with a request that asks for such an answer."""

from __future__ import annotations

from typing import Any

_NAME = {"type": "string", "minLength": 1, "maxLength": 24}
_LINE = {"type": "string", "maxLength": 60}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Any, most: int, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "person": (
        "Describe {} as JSON.",
        _object(name=_NAME, age={"type": "integer", "minimum": 0, "maximum": 120}, email={"type": "string"}),
    ),
    "sentiment": (
        "Is this review good or bad? {}",
        _object(label={"enum": ["good", "bad", "mixed"]}, score={"type": "integer", "minimum": 1, "maximum": 5}),
    ),
    "recipe": (
        "Give me a short recipe for {}.",
        _object(title=_NAME, ingredients=_list(_NAME, 4, 1), minutes={"type": "integer", "minimum": 1, "maximum": 240}),
    ),
    "place": (
        "Where is {}?",
        _object(
            city=_NAME,
            country=_NAME,
            at=_object(
                latitude={"type": "number", "minimum": -90, "maximum": 90},
                longitude={"type": "number", "minimum": -180, "maximum": 180},
            ),
        ),
    ),
    "event": (
        "When does {} begin?",
        _object(
            what=_LINE,
            date={"type": "string", "pattern": "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"},
            sure={"type": "boolean"},
        ),
    ),
    "order": (
        "An order of {} for a shop.",
        _object(
            items=_list(
                _object(sku={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, count={"enum": [1, 2, 3]}), 3, 1
            ),
            note={"anyOf": [_LINE, {"type": "null"}]},
        ),
    ),
    "tags": ("Tag this text: {}", _list({"enum": ["news", "sport", "art", "science", "other"]}, 3, 1)),
    "summary": ("Sum up in one line: {}", _object(summary={"type": "string", "maxLength": 120})),
    "answer": ("Answer, and say why: {}", _object(answer={"type": "boolean"}, reason={"type": "string"})),
    "tree": (
        "Draw the family of {}.",
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": _object(name=_NAME, children=_list({"$ref": "#/$defs/leaf"}, 2)),
                "leaf": _object(name=_NAME),
            },
        },
    ),
}

_ABOUT = ("Ada Lovelace", "a rainy day in Lyon", "the old library", "two cups of tea", "Bob and his dog")


def asked(count: int) -> list[tuple[str, dict[str, Any]]]:
    """So many requests: the text and the schema, each shape as often as every other."""
    shapes = list(SHAPES.values())
    return [
        (shapes[number % len(shapes)][0].format(f"{_ABOUT[number // len(shapes) % len(_ABOUT)]} ({number})"), schema)
        for number in range(count)
        for schema in [shapes[number % len(shapes)][1]]
    ]
