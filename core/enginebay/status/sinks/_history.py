"""The history that the SQLite sink keeps: its rows, and how they are read while an engine writes."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple

__all__ = ["HistoryRow", "read_history"]


class HistoryRow(NamedTuple):
    """One change of one worker. ``wall``: when it was written, in seconds of the day's clock."""

    wall: float
    engine: str
    slot: str
    incarnation: str
    version: int
    phase: str
    reason: str
    message: str
    exit_code: int | None
    signal: int | None


def read_history(path: Path, limit: int = 100) -> list[HistoryRow]:
    """The last ``limit`` changes, oldest first; none where there is no file. Raises ``sqlite3.Error``."""
    if not path.exists():
        return []
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)
    try:
        names = ", ".join(HistoryRow._fields)
        rows = connection.execute(f"SELECT {names} FROM history ORDER BY id DESC LIMIT ?", (limit,))  # noqa: S608  # ours
        return [HistoryRow(*row) for row in rows][::-1]
    finally:
        connection.close()
