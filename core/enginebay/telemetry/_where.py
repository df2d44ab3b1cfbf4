"""Where a served engine's trace is, left in its run folder beside its address, for who wants to follow it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["read_where", "write_where"]

_NAME: Final = "trace"


def write_where(folder: Path, file: Path) -> None:
    """Say in an engine's run folder which trace file it writes."""
    (folder / _NAME).write_bytes(os.fsencode(file.absolute()))


def read_where(folder: Path) -> Path | None:
    """The trace file of the engine of this run folder; None when it writes none."""
    try:
        return Path(os.fsdecode((folder / _NAME).read_bytes()))
    except OSError:
        return None
