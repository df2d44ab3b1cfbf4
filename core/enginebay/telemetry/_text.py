"""Names and values of spans as text and as JSON: they come from elsewhere, and look like nothing of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_EXACT = 1 << 53
"""Integers below it are the same in a reader whose numbers are all doubles."""


def one_line(text: str) -> str:
    """A newline or tab in a name or value must not look like a line of ours."""
    return text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def plain(value: Any) -> Any:
    """An attribute's value as any JSON reader has it: what JSON cannot say is its text."""
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and not -_EXACT < value < _EXACT:
        return str(value)
    return value


def plain_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """All of them."""
    return {key: plain(value) for key, value in attributes.items()}
