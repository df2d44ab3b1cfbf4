"""The tables of the SQLite sink, and its file: private, bounded, and moved aside when it is damaged."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from typing import Final

__all__ = ["connect"]

_LOG = logging.getLogger(__name__)
_VERSION: Final = 1
_BUSY_SECONDS: Final = 2.0
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS slots (
    engine TEXT NOT NULL, slot TEXT NOT NULL, incarnation TEXT NOT NULL, tag INTEGER NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (engine, slot)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS history (
    id INTEGER PRIMARY KEY AUTOINCREMENT, wall REAL NOT NULL, engine TEXT NOT NULL, slot TEXT NOT NULL,
    incarnation TEXT NOT NULL, version INTEGER NOT NULL, phase TEXT NOT NULL, reason TEXT NOT NULL,
    message TEXT NOT NULL, exit_code INTEGER, signal INTEGER
);
CREATE TABLE IF NOT EXISTS engines (
    engine TEXT PRIMARY KEY, begun REAL NOT NULL, boot TEXT NOT NULL, namespace TEXT NOT NULL, pid INTEGER NOT NULL,
    start_ticks INTEGER NOT NULL
) WITHOUT ROWID;
"""


def connect(path: Path, *, wall: float) -> sqlite3.Connection:
    """The database, its tables made. A file that is none is renamed, which the log says. Raises ``sqlite3.Error``,
    ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        return _open(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # busy, full, not writable: nothing that a new file would mend
            raise
        aside = path.with_name(f"{path.name}.damaged-{int(wall)}")
        path.rename(aside)
        for tail in ("-wal", "-shm"):
            path.with_name(path.name + tail).unlink(missing_ok=True)
        _LOG.warning("%s is damaged (%s): it was moved to %s, and a new one is begun", path, error, aside.name)
        return _open(path)


def _open(path: Path) -> sqlite3.Connection:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(descriptor, 0o600)  # also one that others could read
    finally:
        os.close(descriptor)
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise sqlite3.OperationalError(f"{path} has format {version}, and this version knows {_VERSION}")
        connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection
