"""A fault where an expression is wanted."""

from __future__ import annotations

from typing import Any


def throws(error: BaseException) -> Any:
    """Raise the error: ``lambda: throws(error)``."""
    raise error
