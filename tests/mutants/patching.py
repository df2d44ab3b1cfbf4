"""What a mutant is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Patch"]

Patch = Callable[[Any, str, Any], Any]
"""``patch(owner, name, value)`` puts ``value`` there until the mutant is lifted, and returns what was there."""
