"""The engine: step loop, request ledger, assembly, and the front ends of one process.

``LLM`` and ``AsyncLLM`` are what programs use; ``EngineCore`` and ``start`` are what they stand on. ``plan`` (in
``enginebay.engine.plan``) says what would be started. Names are imported when they are first used: ``check`` needs
the plan alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enginebay.engine.answers import Choice, Completion
    from enginebay.engine.assembly import start
    from enginebay.engine.async_llm import AsyncLLM
    from enginebay.engine.core import EngineCore
    from enginebay.engine.llm import LLM
    from enginebay.engine.parts import EngineStats

_HOMES = {
    "AsyncLLM": "enginebay.engine.async_llm",
    "Choice": "enginebay.engine.answers",
    "Completion": "enginebay.engine.answers",
    "EngineCore": "enginebay.engine.core",
    "EngineStats": "enginebay.engine.parts",
    "LLM": "enginebay.engine.llm",
    "start": "enginebay.engine.assembly",
}

__all__ = ["LLM", "AsyncLLM", "Choice", "Completion", "EngineCore", "EngineStats", "start"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'enginebay.engine' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
