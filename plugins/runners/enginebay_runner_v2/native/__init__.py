"""C++ kernels of the operators and the interpreter of a captured step: built on first use, optional, for the CPU."""

from __future__ import annotations

from typing import Any

from enginebay_runner_v2.native.build import BuildFailed, compiler, find, unwritable
from enginebay_runner_v2.native.build import build as _build  # the name is the module's

__all__ = ["BuildFailed", "load", "why_not"]

_loaded: list[str] = []


def why_not() -> str | None:
    """One line if the kernels cannot be had here, else None; imports no torch and builds nothing."""
    if find() is not None:
        return None
    if compiler() is None:
        return "no C++ compiler (c++, g++ or clang++; or set CXX), so steps run on torch's own operators"
    if (at := unwritable()) is not None:
        return f"cannot write to {at} (set ENGINEBAY_CACHE to another folder), so steps run on torch's own operators"
    return None


def load() -> str:
    """Put the kernels before the references in this process; returns the library's path, raises ``BuildFailed``.

    The first call on a machine compiles, which takes a minute or so; later ones map a file.
    """
    if not _loaded:
        import torch

        from enginebay_runner_v2 import ops  # noqa: F401  # their schemas come first

        path = str(_build())
        ops_of_torch: Any = torch.ops  # its functions have no annotations
        try:
            ops_of_torch.load_library(path)
        except OSError as error:
            raise BuildFailed(f"{path} does not load: {error}") from error
        _loaded.append(path)
    return _loaded[0]
