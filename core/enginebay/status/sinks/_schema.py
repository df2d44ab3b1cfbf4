"""The tables of the SQLite sink, and its file: private, bounded, and moved aside when it is damaged."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from enginebay.errors import one_line

__all__ = ["Mark", "connect", "is_damage", "mark_of", "may_go_on"]

E = TypeVar("E", bound=sqlite3.Error)

_LOG = logging.getLogger(__name__)
_VERSION: Final = 1
_BUSY_SECONDS: Final = 2.0
_CHECKED_BYTES: Final = 256 << 20
"""A larger file is not looked through, which would take seconds: its damage is found where it is read."""
_KEPT_ASIDE: Final = 3
"""Damaged files beside the good one; with more, the oldest goes."""
_TAILS: Final = ("-wal", "-shm", "-journal")
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


class Mark(NamedTuple):
    """By which a file is known again: its device and inode, and as long as nobody has written, size and time."""

    file: tuple[int, int]
    content: tuple[int, int]


def mark_of(path: Path) -> Mark | None:
    """None: nothing is there. By ``stat`` alone: a descriptor that is closed would give back the file's locks."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return Mark((found.st_dev, found.st_ino), (found.st_size, found.st_mtime_ns))


def is_damage(error: sqlite3.Error) -> bool:
    """Whether it says that the file is no such database; not that it is busy, full or cannot be written."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF  # without one: text that is none
    if isinstance(error, sqlite3.OperationalError):
        return code == sqlite3.SQLITE_ERROR  # a table or a column that is not there
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def may_go_on(error: sqlite3.Error) -> bool:
    """Whether the connection is as good as before: another writes at the moment, or the disk is full."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)


def connect(path: Path, *, wall: float) -> tuple[sqlite3.Connection, str]:
    """The database, its tables made, and the name under which a damaged one lies now, which the log says; "": it was
    none. Raises ``sqlite3.Error``, ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        return _open(path), ""
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
    with _one_at_a_time(path.parent):
        try:
            return _open(path), ""  # another engine has begun it anew meanwhile
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            aside = _put_aside(path, wall)
            _LOG.warning(
                "%s is damaged (%s): it was moved to %s, and a new one is begun with the present statuses. "
                "Earlier changes are there alone: sqlite3's .recover may read them; else it can be deleted",
                path,
                error,
                aside.name,
            )
            return _open(path), aside.name


def _open(path: Path) -> sqlite3.Connection:
    _make_private(path)
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        # Not the write-ahead log: it is mapped into memory, and whoever cuts that file short ends the engine by SIGBUS.
        connection.execute("PRAGMA mmap_size = 0")
        with suppress(sqlite3.OperationalError):  # an engine of another version has it open with one
            connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA synchronous = NORMAL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise _said(
                sqlite3.OperationalError(f"{path} has format {version}, and this version knows {_VERSION}"),
                sqlite3.SQLITE_MISMATCH,  # and no damage: a later version made it
            )
        if path.stat().st_size <= _CHECKED_BYTES:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise _said(sqlite3.DatabaseError(one_line(" ".join(found.split()), 200)), sqlite3.SQLITE_CORRUPT)
        if not _has_tables(connection) or version != _VERSION:  # else nothing is written, and others need not look
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


def _make_private(path: Path) -> None:
    """Of this user alone, also one that others could read."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            raise OSError(f"{path} is no file of its own: move away what stands there") from None
        if stat.S_IMODE(mode) != 0o600:
            path.chmod(0o600)


def _has_tables(connection: sqlite3.Connection) -> bool:
    """Whether all are there. A stranger's tables of the same names are no tables of ours: raises ``DatabaseError``."""
    found = True
    with closing(sqlite3.connect(":memory:")) as ours:
        ours.executescript(_TABLES)
        for table in ("slots", "history", "engines"):
            there, here = (one.execute(f"PRAGMA table_info({table})").fetchall() for one in (connection, ours))
            if there not in ([], here):
                raise _said(sqlite3.DatabaseError(f"the table {table} is another's"), sqlite3.SQLITE_CORRUPT)
            found = found and bool(there)
    return found


def _said(error: E, code: int) -> E:
    """An error as SQLite raises it."""
    error.sqlite_errorcode = code
    return error


def _put_aside(path: Path, wall: float) -> Path:
    number = int(wall)
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(aside)
    for tail in _TAILS:  # with what is not yet in it, for whoever reads it
        with suppress(FileNotFoundError):
            path.with_name(path.name + tail).rename(aside.with_name(aside.name + tail))
    before = sorted(
        (one for one in path.parent.glob(f"{path.name}.damaged-*") if one.name.rpartition("-")[2].isdigit()),
        key=lambda one: (len(one.name), one.name),
    )
    for old in before[:-_KEPT_ASIDE]:
        for tail in ("", *_TAILS):
            old.with_name(old.name + tail).unlink(missing_ok=True)
    return aside


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Among the engines of this folder, whoever comes second looks again. Raises ``OSError`` instead of waiting."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
