"""Whether this machine has an accelerator that torch drives, told from files: workers alone import torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from enginebay.errors import one_line

__all__ = ["accelerator_here", "device_of_slots"]

_DEVICES: Final = Path("/dev")
_HIDDEN: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_NOT_CUDA: Final = ("cpu", "xpu")
_MAX_KIND: Final = 64


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


def device_of_slots(asked: str, devices: Sequence[str], *, here: bool = True) -> str:
    """The kind of device that slots are named by before a worker has looked: as ``asked``, or what "auto" will find.

    ``devices`` are those that the runner can drive; ``here``: the workers are on this machine. A slot keeps its name,
    so what is wrongly foreseen is said as a condition; "": nobody here can foresee it.
    """
    if asked != "auto":
        return one_line(asked, _MAX_KIND)
    if len(devices) == 1:
        return devices[0]
    if not here:
        return ""
    found = accelerator_here()
    if found is not None and found in devices:
        return found
    return "cpu" if "cpu" in devices else ""
