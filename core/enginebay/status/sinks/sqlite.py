"""The default sink: a database in the user's state folder, with the present record of each slot and a bounded history.

Each engine has slots of its own in it, under the name of its run. What an engine that is dead has left there goes into
the history as gone when the next one opens the file: of how its workers stood nothing is made up.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec
from pydantic import Field, field_validator

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import Options, StatusConflict, StatusSink, StatusSinkContext, StatusSinkPlugin, Stored
from enginebay.messages import Slot, StatusRecord
from enginebay.status.sinks._history import HistoryRow, read_history
from enginebay.status.sinks._processes import Owner, is_gone, this_process
from enginebay.status.sinks._schema import Mark, connect, is_damage, mark_of, may_go_on
from enginebay.status.statehome import state_home

__all__ = [
    "HistoryRow",
    "SqliteSink",
    "SqliteSinkOptions",
    "enginebay_register_status_sinks",
    "is_damage",
    "read_history",
]

_LOG = logging.getLogger(__name__)
_GONE: Final = "Gone"
_BEGUN: Final = "Begun"

T = TypeVar("T")


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


class _Row(NamedTuple):
    """What a slot holds, as it stands in its table."""

    incarnation: str
    tag: int
    record: bytes


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
    """See the module. The file is opened by the thread that writes to it, at its first call.

    When it is gone, another's or damaged later, a new one is begun, with all that this engine's slots hold.
    """

    def __init__(self, context: StatusSinkContext[SqliteSinkOptions]) -> None:
        super().__init__(context)
        self._connection: sqlite3.Connection | None = None
        self._mark: Mark | None = None
        self._strange = False
        """Whether somebody else has written since it was opened, perhaps nonsense."""
        self._held: dict[Slot, _Row] = {}
        """What this engine has written: with the file, it is not lost."""

    def read(self, slot: Slot) -> Stored | None:
        """See ``StatusSink``."""
        return self._do(lambda connection: _held(connection, self.context.engine, slot), look=True)

    def write(self, record: StatusRecord, seen: str) -> str:
        """See ``StatusSink``."""
        slot, inc = record.status.slot, record.status.incarnation.id

        def put(connection: sqlite3.Connection) -> _Row:
            held = _held(connection, self.context.engine, slot)
            if (held.tag if held else "") != seen:
                raise StatusConflict(held)
            row = _Row(inc, int(held.tag) + 1 if held else 1, msgspec.json.encode(record))
            self._put(connection, slot, row)
            if held is None or _shown(held.record) != _shown(record):  # else the history would say it twice
                self._note(connection, self.context.engine, record, str(record.status.phase), record.status.reason)
            return row

        self._held[slot] = row = self._do(put)
        return str(row.tag)

    def remove(self, slot: Slot, incarnation_id: str) -> None:
        """See ``StatusSink``."""
        self._do(
            lambda connection: connection.execute(
                "DELETE FROM slots WHERE engine = ? AND slot = ? AND incarnation = ?",
                (self.context.engine, slot.name, incarnation_id),
            )
        )
        if slot in self._held and self._held[slot].incarnation == incarnation_id:
            del self._held[slot]

    def records(self) -> list[Stored]:
        """See ``StatusSink``."""
        statement = "SELECT tag, record FROM slots WHERE engine = ? ORDER BY slot"
        return self._do(
            lambda connection: [_stored(*row) for row in connection.execute(statement, (self.context.engine,))],
            look=True,
        )

    def close(self) -> None:
        """What this engine's slots hold stays in the history alone."""
        if self._connection is None and not self._held:
            return
        try:
            self._do(lambda connection: self._leave(connection, self.context.engine, gone=False))
        finally:
            self._held.clear()
            self._shut()

    def _do(self, work: Callable[[sqlite3.Connection], T], *, look: bool = False) -> T:
        """In one transaction: all of it or nothing. ``look``: and see whether what others have written is sound."""
        present = mark_of(self.context.options.file)
        if self._mark is not None and (present is None or present.file != self._mark.file):
            _LOG.warning(
                "%s was deleted or replaced while this engine writes to it: all present statuses are written again. "
                "If that was not on purpose, find out what does it; [status.sqlite] path names another file",
                self.context.options.file,
            )
            self._shut()
        self._strange |= self._mark is not None and present != self._mark
        if look and self._strange:
            self._shut()  # opening it looks through it
        try:
            return self._once(work)
        except sqlite3.DatabaseError as error:
            if may_go_on(error):
                raise
            self._shut()
            if not is_damage(error):
                raise
        return self._once(work)

    def _once(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None:
            self._connection = self._open()
        with _transaction(self._connection):
            done = work(self._connection)
        self._mark = mark_of(self.context.options.file)
        return done

    def _shut(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._mark, self._strange = None, None, False

    def _open(self) -> sqlite3.Connection:
        connection, aside = connect(self.context.options.file, wall=self.context.wall())
        try:
            with _transaction(connection):
                self._enter(connection)
                self._restore(connection, aside)
        except BaseException:
            connection.close()
            raise
        return connection

    def _restore(self, connection: sqlite3.Connection, aside: str) -> None:
        """What this file should hold and does not. ``aside``: the name that a damaged one has now."""
        if aside:
            message = f"the file before was damaged, and lies in {aside}"
            wall, engine = self.context.wall(), self.context.engine
            self._add(connection, HistoryRow(wall, engine, "-", "", 0, _BEGUN, "FileDamaged", message, None, None))
        for slot, row in self._held.items():
            if _held(connection, self.context.engine, slot) is None:
                record = msgspec.json.decode(row.record, type=StatusRecord)
                self._put(connection, slot, row)
                self._note(connection, self.context.engine, record, str(record.status.phase), record.status.reason)

    def _put(self, connection: sqlite3.Connection, slot: Slot, row: _Row) -> None:
        connection.execute(
            "INSERT OR REPLACE INTO slots VALUES (?, ?, ?, ?, ?)", (self.context.engine, slot.name, *row)
        )

    def _enter(self, connection: sqlite3.Connection) -> None:
        """Say whose slots these are, and clean up behind those that cannot any more."""
        for engine, *owner in connection.execute("SELECT engine, boot, namespace, pid, start_ticks FROM engines"):
            if is_gone(Owner(*owner)):
                self._leave(connection, engine, gone=True)
        own, known = this_process(), "SELECT boot, namespace, pid, start_ticks FROM engines WHERE engine = ?"
        if connection.execute(known, (self.context.engine,)).fetchone() != own:
            connection.execute(
                "INSERT OR REPLACE INTO engines VALUES (?, ?, ?, ?, ?, ?)",
                (self.context.engine, self.context.wall(), *own),
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
        self._add(connection, row)

    def _add(self, connection: sqlite3.Connection, row: HistoryRow) -> None:
        names, marks = ", ".join(HistoryRow._fields), ", ".join("?" * len(row))
        added = connection.execute(f"INSERT INTO history ({names}) VALUES ({marks})", row)  # noqa: S608  # our names
        connection.execute(
            "DELETE FROM history WHERE id <= ?", ((added.lastrowid or 0) - self.context.options.history,)
        )


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
    with suppress(msgspec.DecodeError):  # nothing that anybody could compare with: it is written anew
        return None if row is None else _stored(*row)
    return None


def _shown(record: StatusRecord) -> tuple[object, ...]:
    """What a row of the history has of it, beside its time and its number."""
    one = record.status
    return one.incarnation.id, one.phase, one.reason, one.message, one.exit_code, one.signal


def _stored(tag: int, record: bytes) -> Stored:
    return Stored(record=msgspec.json.decode(record, type=StatusRecord), tag=str(tag))
