"""Faults of pydantic in words that fit a config file; used for our sections and for plugins' options alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

_WHOLE = "must be a whole number"
_TEXTS = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be a table",
    "finite_number": "must be a finite number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "list_type": "must be a list",
    "missing": "is missing",
    "model_type": "must be a table",
    "path_type": "must be a path, in quotes",
    "string_type": "must be text, in quotes",
    "tuple_type": "must be a list",
}
_BOUNDS = {
    "greater_than": ("gt", "must be more than"),
    "greater_than_equal": ("ge", "must be at least"),
    "less_than": ("lt", "must be less than"),
    "less_than_equal": ("le", "must be at most"),
}


def explain_fault(detail: ErrorDetails) -> str:
    """One validation error as the end of a sentence that begins with the key: "must be at least 1, and is 0"."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        value = context[bound]
        text = f"{words} {int(value) if isinstance(value, float) and value.is_integer() else value}"
    elif kind in ("literal_error", "enum"):
        text = f"must be {context['expected']}"
    elif kind in _TEXTS:
        text = _TEXTS[kind]
    elif kind in ("value_error", "assertion_error"):
        return str(context["error"])
    else:
        text = detail["msg"][:1].lower() + detail["msg"][1:]
    return text if kind == "missing" else f"{text}, and is {_shown(detail['input'])}"


def fault_path(detail: ErrorDetails, data: Any) -> tuple[str, ...]:
    """Where in ``data`` the fault is; pydantic's names for the branches of a union are left out."""
    path: list[str] = []
    for part in detail["loc"]:
        inside = (isinstance(data, Mapping) and part in data) or (
            isinstance(data, Sequence) and not isinstance(data, str) and isinstance(part, int) and part < len(data)
        )
        if inside:
            data = data[part]
        elif detail["type"] != "missing":
            break
        path.append(str(part))
    return tuple(path)


def join_faults(texts: Sequence[str]) -> str:
    """Branches of a union say each what it would have taken: "must be A or must be B, and is 0"."""
    unique = list(dict.fromkeys(texts))
    ends = {t.rpartition(", and is ")[2] for t in unique}
    if len(unique) > 1 and len(ends) == 1 and all(", and is " in t for t in unique):
        return f"{' or '.join(t.rpartition(', and is ')[0] for t in unique)}, and is {ends.pop()}"
    return " or ".join(unique)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
