"""Which of the engine's environment variables travel to the workers: Ray gives them those of its own processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from enginebay.errors import StartFailed

__all__ = ["environment_of_workers"]

_PREFIXES: Final = ("ENGINEBAY_", "GLOO_", "HF_", "NCCL_", "OMP_", "OTEL_", "PYTORCH_", "TORCH")
_NOT: Final = ("ENGINEBAY__", "ENGINEBAY_RUN")
"""What only the engine reads: settings are in the workers' config already, and a run folder is one machine's."""


def environment_of_workers(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that the option ``env`` names, and those of the libraries that workers use.

    Raises ``StartFailed`` for one that is named and not set here, or that is Ray's own to give.
    """
    for name in names:
        if name.endswith("VISIBLE_DEVICES") or name.startswith("RAY_"):
            raise StartFailed(f"[executor.options] env names {name}, which Ray itself gives its workers: remove it")
        if name not in environ:
            raise StartFailed(
                f"[executor.options] env names {name}, which is not set in the engine's environment: set it, or "
                "remove it from the list"
            )
    found = {name for name in environ if name.startswith(_PREFIXES) and not name.startswith(_NOT)}
    return {name: environ[name] for name in sorted(found | set(names))}
