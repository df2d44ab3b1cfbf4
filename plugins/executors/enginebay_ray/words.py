"""What Ray says about an actor's end, in a few words, and the last lines that its process wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from enginebay.errors import one_line

__all__ = ["death_in_words", "last_lines", "log_of"]

_DETAIL: Final = "Worker exit detail: "
_ADVICE: Final = " Some common causes include"
_TAIL_BYTES: Final = 8192
_TAIL_LINES: Final = 10


def death_in_words(error: BaseException) -> str:
    """One line of Ray's many: what it knows about the end of the process, without its general advice."""
    text = " ".join(str(error).split())
    _, found, detail = text.partition(_DETAIL)
    if found:
        return one_line(f"Ray says: {detail.partition(_ADVICE)[0]}", 300)
    _, found, reason = text.partition("The actor is dead because ")
    return one_line(f"Ray says: {reason if found else f'{type(error).__name__}: {text}'}", 300)


def log_of(pid: int) -> Path | None:
    """The file into which a process of this machine writes its errors; None: there is none that we may read."""
    try:
        path = Path(os.readlink(f"/proc/{pid}/fd/2"))
    except OSError:
        return None
    return path if path.is_file() else None


def last_lines(log: Path | None) -> list[str]:
    """The last lines of a log, made fit for a message."""
    if log is None:
        return []
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return []
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(":")]  # ":" marks are Ray's
    return [one_line(line, 300) for line in lines[-_TAIL_LINES:]]
