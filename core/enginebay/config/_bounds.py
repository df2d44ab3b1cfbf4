"""What a config may hold at all: bytes, depth and numbers, looked at before anything walks through it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MAX_CONFIG_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_FAULTS = 50
"""Told one by one; the rest is counted."""
_MAX_INT = 2**63 - 1  # what TOML promises, a message holds, and Python can print


def bad_value(value: Any) -> str | None:
    """The first thing that no config may hold, as the end of a sentence, or None. Not by recursion."""
    todo: list[tuple[Any, int]] = [(value, 0)]
    while todo:
        value, depth = todo.pop()
        if depth > MAX_DEPTH:
            return f"tables or lists are nested more than {MAX_DEPTH} deep"
        if isinstance(value, int) and not -_MAX_INT <= value <= _MAX_INT:
            return "a number is beyond 64 bits"
        if isinstance(value, str) and not _is_unicode(value):
            return "a text is not UTF-8"
        inner: Iterable[Any] = ()
        if isinstance(value, Mapping):
            inner = (*value.keys(), *value.values())
        elif isinstance(value, list | tuple):
            inner = value
        todo += [(one, depth + 1) for one in inner]
    return None


def _is_unicode(text: str) -> bool:
    """Whether it can be sent and stored: bytes of the command line that are no text come as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
