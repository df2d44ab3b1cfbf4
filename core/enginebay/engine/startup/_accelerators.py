"""Whether this machine has an accelerator that torch drives, told from files: workers alone import torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

__all__ = ["accelerator_here"]

_DEVICES: Final = Path("/dev")
_HIDDEN: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_NOT_CUDA: Final = ("cpu", "xpu")


def accelerator_here(devices: Path = _DEVICES, environ: Mapping[str, str] = os.environ) -> str | None:
    """The kind of accelerator that is likely here ("cuda", as torch calls AMD's too), or None.

    A wrong yes costs speed alone: the worker looks again, with torch, before it takes a device.
    """
    try:
        build = metadata.version("torch").partition("+")[2]
    except metadata.PackageNotFoundError:
        return None
    if build.startswith(_NOT_CUDA) or any(environ.get(name) in ("", "-1") for name in _HIDDEN):
        return None
    patterns = ("kfd",) if build.startswith("rocm") else ("nvidia[0-9]*", "dxg")
    return "cuda" if any(any(devices.glob(pattern)) for pattern in patterns) else None
