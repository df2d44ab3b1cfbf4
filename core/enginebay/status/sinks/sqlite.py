"""The default sink: a database in the user's state folder, with the present record of each slot and a bounded history.

Each engine has slots of its own in it, under the name of its run. What an engine that is dead has left there goes into
the history as gone when the next one opens the file: of how its workers stood nothing is made up.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from pydantic import Field, field_validator

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import Options, StatusConflict, StatusSink, StatusSinkContext, StatusSinkPlugin, Stored
from enginebay.messages import Slot, StatusRecord
from enginebay.status.sinks._processes import Owner, is_gone, this_process
from enginebay.status.sinks._schema import connect
from enginebay.status.statehome import state_home

__all__ = ["HistoryRow", "SqliteSink", "SqliteSinkOptions", "enginebay_register_status_sinks", "read_history"]

_GONE: Final = "Gone"


class SqliteSinkOptions(Options):
    """What stands in ``[status.sqlite]``."""

    path: Annotated[
        Path | None,
        Field(description="The file, whole path or ~/…; unset: status.sqlite3 in this user's state folder."),
    ] = None
    history: Annotated[int, Field(ge=0, strict=True, description="Changes that are kept, of all engines.")] = 10_000

    @field_validator("path")
    @classmethod
    def _whole(cls, value: Path | None) -> Path | None:
        path = None if value is None else value.expanduser()
        if path is not None and not path.is_absolute():
            raise ValueError(f"must be a whole path, and is '{path}'")
        return path

    @property
    def file(self) -> Path:
        """The file in force."""
        return self.path or state_home() / "status.sqlite3"


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


@hookimpl
def enginebay_register_status_sinks() -> list[StatusSinkPlugin[SqliteSinkOptions]]:
    """Offer ``sqlite``."""
    return [
        StatusSinkPlugin(
            name="sqlite",
            options=SqliteSinkOptions,
            factory=SqliteSink,
            summary="A database in the user's state folder, with a history.",
        )
    ]


class SqliteSink(StatusSink[SqliteSinkOptions]):
    """See the module. The file is opened by the thread that writes to it, at its first call."""

    def __init__(self, context: StatusSinkContext[SqliteSinkOptions]) -> None:
        super().__init__(context)
        self._connection: sqlite3.Connection | None = None

    def read(self, slot: Slot) -> Stored | None:
        """See ``StatusSink``."""
        with self._begun() as connection:
            return _held(connection, self.context.engine, slot)

    def write(self, record: StatusRecord, seen: str) -> str:
        """See ``StatusSink``."""
        slot, inc = record.status.slot, record.status.incarnation.id
        with self._begun() as connection:
            held = _held(connection, self.context.engine, slot)
            if (held.tag if held else "") != seen:
                raise StatusConflict(held)
            tag = int(held.tag) + 1 if held else 1
            connection.execute(
                "INSERT OR REPLACE INTO slots VALUES (?, ?, ?, ?, ?)",
                (self.context.engine, slot.name, inc, tag, msgspec.json.encode(record)),
            )
            self._note(connection, self.context.engine, record, str(record.status.phase), record.status.reason)
        return str(tag)

    def remove(self, slot: Slot, incarnation_id: str) -> None:
        """See ``StatusSink``."""
        with self._begun() as connection:
            connection.execute(
                "DELETE FROM slots WHERE engine = ? AND slot = ? AND incarnation = ?",
                (self.context.engine, slot.name, incarnation_id),
            )

    def records(self) -> list[Stored]:
        """See ``StatusSink``."""
        with self._begun() as connection:
            rows = connection.execute(
                "SELECT tag, record FROM slots WHERE engine = ? ORDER BY slot", (self.context.engine,)
            )
            return [_stored(*row) for row in rows]

    def close(self) -> None:
        """What this engine's slots hold stays in the history alone."""
        if self._connection is None:
            return
        try:
            with self._begun() as connection:
                self._leave(connection, self.context.engine, gone=False)
        finally:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _begun(self) -> Iterator[sqlite3.Connection]:
        """A transaction; all of it or nothing."""
        if self._connection is None:
            self._connection = self._open()
        with _transaction(self._connection):
            yield self._connection

    def _open(self) -> sqlite3.Connection:
        connection = connect(self.context.options.file, wall=self.context.wall())
        try:
            with _transaction(connection):
                self._enter(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _enter(self, connection: sqlite3.Connection) -> None:
        """Say whose slots these are, and clean up behind those that cannot any more."""
        for engine, *owner in connection.execute("SELECT engine, boot, namespace, pid, start_ticks FROM engines"):
            if is_gone(Owner(*owner)):
                self._leave(connection, engine, gone=True)
        connection.execute(
            "INSERT OR REPLACE INTO engines VALUES (?, ?, ?, ?, ?, ?)",
            (self.context.engine, self.context.wall(), *this_process()),
        )

    def _leave(self, connection: sqlite3.Connection, engine: str, *, gone: bool) -> None:
        """An engine's slots are nobody's any more. ``gone``: it did not say so itself."""
        rows = connection.execute("SELECT tag, record FROM slots WHERE engine = ? ORDER BY slot", (engine,)).fetchall()
        if gone:
            for row in rows:
                with suppress(msgspec.DecodeError):  # of another version, which may know more phases
                    self._note(connection, engine, _stored(*row).record, _GONE, "EngineGone")
        connection.execute("DELETE FROM slots WHERE engine = ?", (engine,))
        connection.execute("DELETE FROM engines WHERE engine = ?", (engine,))

    def _note(self, connection: sqlite3.Connection, engine: str, record: StatusRecord, phase: str, reason: str) -> None:
        status = record.status
        row = HistoryRow(
            wall=self.context.wall(),
            engine=engine,
            slot=status.slot.name,
            incarnation=status.incarnation.id,
            version=record.version,
            phase=phase,
            reason=reason,
            message=status.message,
            exit_code=status.exit_code,
            signal=status.signal,
        )
        names, marks = ", ".join(HistoryRow._fields), ", ".join("?" * len(row))
        added = connection.execute(f"INSERT INTO history ({names}) VALUES ({marks})", row)  # noqa: S608  # our names
        connection.execute(
            "DELETE FROM history WHERE id <= ?", ((added.lastrowid or 0) - self.context.options.history,)
        )


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


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk ends it by itself
            connection.execute("ROLLBACK")
        raise


def _held(connection: sqlite3.Connection, engine: str, slot: Slot) -> Stored | None:
    row = connection.execute(
        "SELECT tag, record FROM slots WHERE engine = ? AND slot = ?", (engine, slot.name)
    ).fetchone()
    return None if row is None else _stored(*row)


def _stored(tag: int, record: bytes) -> Stored:
    return Stored(record=msgspec.json.decode(record, type=StatusRecord), tag=str(tag))
