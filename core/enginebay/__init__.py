"""enginebay: an inference engine whose executor, model runner and scheduler are plugins.

::

    from enginebay import LLM, SamplingParams

    with LLM() as llm:
        for answer in llm.generate(["The capital of France is"], SamplingParams(max_tokens=16)):
            print(answer.text)

Names are imported when they are first used: importing this package is cheap and brings no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enginebay.engine.front.answers import Choice, Completion
    from enginebay.engine.front.async_llm import AsyncLLM
    from enginebay.engine.front.llm import LLM
    from enginebay.errors import EnginebayError
    from enginebay.interfaces import API_VERSION
    from enginebay.messages import FinishReason, RequestOutput, SamplingParams, StructuredOutput, ToolSchema

__version__ = "0.1.0"

_HOMES = {
    "API_VERSION": "enginebay.interfaces",
    "AsyncLLM": "enginebay.engine.front.async_llm",
    "Choice": "enginebay.engine.front.answers",
    "Completion": "enginebay.engine.front.answers",
    "EnginebayError": "enginebay.errors",
    "FinishReason": "enginebay.messages",
    "LLM": "enginebay.engine.front.llm",
    "RequestOutput": "enginebay.messages",
    "SamplingParams": "enginebay.messages",
    "StructuredOutput": "enginebay.messages",
    "ToolSchema": "enginebay.messages",
}

__all__ = [
    "API_VERSION",
    "LLM",
    "AsyncLLM",
    "Choice",
    "Completion",
    "EnginebayError",
    "FinishReason",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutput",
    "ToolSchema",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'enginebay' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
