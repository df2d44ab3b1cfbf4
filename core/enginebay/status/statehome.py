"""The user's state folder, and the number of an engine's run, which only grows: by it lives of two runs compare."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

from enginebay.errors import StartFailed

__all__ = ["next_epoch", "state_home"]


def state_home(environ: Mapping[str, str] = os.environ) -> Path:
    """``$ENGINEBAY_STATE``, else ``$XDG_STATE_HOME/enginebay``, else ``~/.local/state/enginebay``."""
    if own := environ.get("ENGINEBAY_STATE"):
        return Path(own).expanduser().absolute()
    if xdg := environ.get("XDG_STATE_HOME"):
        return Path(xdg).absolute() / "enginebay"
    return Path.home() / ".local" / "state" / "enginebay"


def next_epoch(folder: Path, wall: float) -> int:
    """One more than any engine with this state folder was given before; where the count is damaged, ``wall``: the time
    of day in seconds is behind any count.

    Raises ``StartFailed`` when the folder cannot be written.
    """
    path = folder / "epoch"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            text = os.pread(descriptor, 32, 0)
            damaged = bool(text.strip()) and not text.strip().isdigit()
            number = int(wall) if damaged else int(text or b"0") + 1
            os.pwrite(descriptor, f"{number:<20}".encode(), 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        what = f"the state folder {folder} cannot be used: {error.strerror or error}"
        raise StartFailed(f"{what}; set ENGINEBAY_STATE to another one") from error
    return number
