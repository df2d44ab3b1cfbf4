"""The engine: step loop, request ledger, assembly, and the front ends of one process.

``LLM`` and ``AsyncLLM`` are what programs use; ``EngineCore`` and ``start`` are what they stand on; ``plan`` (in
``startup``) says what would be started. The step loop lies in this folder itself, what is around it in the folders:
``startup`` before it, ``admission`` in front of it, ``control`` beside it, and above it ``replicas``, ``service`` with
``remote``, and ``front``. Names are imported when they are first used: ``check`` needs the plan alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enginebay.engine.core import EngineCore
    from enginebay.engine.front.answers import Choice, Completion
    from enginebay.engine.front.async_llm import AsyncLLM
    from enginebay.engine.front.llm import LLM
    from enginebay.engine.parts import EngineStats
    from enginebay.engine.startup.assembly import start

_HOMES = {
    "AsyncLLM": "enginebay.engine.front.async_llm",
    "Choice": "enginebay.engine.front.answers",
    "Completion": "enginebay.engine.front.answers",
    "EngineCore": "enginebay.engine.core",
    "EngineStats": "enginebay.engine.parts",
    "LLM": "enginebay.engine.front.llm",
    "start": "enginebay.engine.startup.assembly",
}

__all__ = ["LLM", "AsyncLLM", "Choice", "Completion", "EngineCore", "EngineStats", "start"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'enginebay.engine' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
