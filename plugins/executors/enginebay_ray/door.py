"""The one place where Ray is imported: late, and as ``Any``, for its own types are partly there."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

__all__ = ["load_ray"]

_UNPRINTED: Final = "RAY_DEDUP_LOGS_SKIP_REGEX"


def load_ray() -> Any:
    """The module ``ray``; it costs half a second the first time.

    Ray prints what happens on its nodes to stdout, which is for the engine's answers: unless the user has imported Ray
    before, or has set that variable, none of it is printed. Deaths of workers are told by the executor.
    """
    if "ray" not in sys.modules and _UNPRINTED not in os.environ:
        os.environ[_UNPRINTED] = "."
        try:
            import ray
        finally:
            del os.environ[_UNPRINTED]
    else:
        import ray
    return ray
