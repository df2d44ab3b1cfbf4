"""What the faults of a config hide: a value that is no value is taken out, and the rest is looked at again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from enginebay.config._explain import fault_path
from enginebay.config._faults import faults_of
from enginebay.config._models import EngineConfig

__all__ = ["Beneath", "look_beneath"]

_LOOKS: Final = 4

Path = tuple[str, ...]


@dataclass
class Beneath:
    """``faults`` came to light; ``config`` is what is left without what is ``left_out`` ("cache.block_size"), if that
    is a config."""

    faults: list[str] = field(default_factory=list)
    config: EngineConfig | None = None
    left_out: set[str] = field(default_factory=set)


def look_beneath(error: ValidationError, data: Mapping[str, Any], origins: Mapping[str, str], file: str) -> Beneath:
    """Whatever is wrong with ``data`` beside ``error``, which has been told.

    A section is looked at as a whole only when all of its values are good. What is said then of a value that was
    taken out is said of its default, and is no fault.
    """
    found, left = Beneath(), _copy(data)
    for _ in range(_LOOKS):
        for path in {fault_path(detail, left) for detail in error.errors(include_url=False)}:
            taken = _take_out(left, path)
            if not taken:
                return found
            found.left_out.add(".".join(taken))
        try:
            found.config = EngineConfig.model_validate(left)
            return found
        except ValidationError as another:
            error = another
        details = error.errors(include_url=False)
        new = [one for one in details if not _speaks_of(found.left_out, fault_path(one, left), one)]
        found.faults += faults_of(new, left, origins, file)
    return found


def _copy(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in data.items()}


def _take_out(data: dict[str, Any], path: Path) -> Path:
    """Remove what stands there, of a list the whole list. Returns where that was, () when nothing is there."""
    table = data
    for depth, part in enumerate(path):
        below = table.get(part)
        if depth + 1 < len(path) and isinstance(below, dict):
            table = below
            continue
        return path[: depth + 1] if table.pop(part, None) is not None else ()
    return ()


def _speaks_of(left_out: set[str], path: Path, detail: ErrorDetails) -> bool:
    names = [key.partition(".")[2] for key in left_out if path and key.startswith(f"{path[0]}.")]
    said = detail["msg"]
    return any(re.search(rf"\b{re.escape(name)}\b", said) for name in names)
