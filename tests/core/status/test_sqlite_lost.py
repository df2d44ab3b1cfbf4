"""The SQLite sink's file is deleted, replaced or damaged while an engine writes to it: its statuses come back whole."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

import pytest

from enginebay.interfaces import StatusSinkContext
from enginebay.messages import Phase, Slot, StatusRecord
from enginebay.status import SinkSync, StatusBook
from enginebay.status.sinks import _schema
from enginebay.status.sinks.sqlite import SqliteSink, SqliteSinkOptions, read_history
from support.status import status

SLOTS = [Slot(group=0, rank=rank) for rank in range(3)]
LONG = "x" * 1000


class _Engine:
    """A book with a SQLite sink over a clock that the test turns."""

    def __init__(self, path: Path, name: str = "one") -> None:
        self.now = 100.0
        self.path = path
        options = SqliteSinkOptions(path=path)
        self.sink = SqliteSink(StatusSinkContext(options=options, engine=name, wall=lambda: 1000.0 + self.now))
        self.book = StatusBook(now=lambda: self.now, wall=lambda: self.now, lock=nullcontext(), sinks=["sqlite"])
        self.sync = SinkSync("sqlite", self.sink, self.book, now=lambda: self.now, draw=lambda: 0.0)

    def tell(self, phase: Phase, *, message: str = "", full: bool = False) -> None:
        self.now += 2.0
        for slot in SLOTS:
            self.book.set(status(phase, inc=f"a{slot.rank}", slot=slot, message=message))
        self.sync.tick(full=full)

    def full_pass(self) -> None:
        self.now += 40.0
        self.sync.tick(full=True)

    def held(self) -> list[tuple[str, str]]:
        """As another process reads it."""
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute("SELECT slot, record FROM slots ORDER BY slot").fetchall()
        return [(slot, record.decode()) for slot, record in rows]


@pytest.fixture
def engine(tmp_path: Path) -> _Engine:
    """Three workers, and enough of a history that the file has many pages."""
    engine = _Engine(tmp_path / "state" / "status.sqlite3")
    engine.tell(Phase.LOADING)
    for number in range(10):
        engine.tell(Phase.LOADING, message=f"{number}{LONG}")
    engine.tell(Phase.READY)
    assert engine.sync.health().behind == 0
    return engine


def _set(told: threading.Event, *_: object) -> None:
    told.set()


def _middle(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))


def _strangers(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE slots (what TEXT)")
        connection.commit()


def _without_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("DROP TABLE slots; DROP TABLE history;")


def _other(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(b"this is no database" * 500)
    new.replace(path)


def _emptied(path: Path) -> None:
    """Each file that is there, whatever it is for: one that is mapped would end the process."""
    for one in path.parent.iterdir():
        os.truncate(one, 0)


FAULTS: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "its folder deleted": lambda path: shutil.rmtree(path.parent),
    "replaced by another file": _other,
    "replaced by a database of a stranger's": _strangers,
    "replaced by an empty file": lambda path: (path.unlink(), path.touch()),
    "emptied": _emptied,
    "cut short": lambda path: os.truncate(path, path.stat().st_size // 2 + 100),
    "overwritten": lambda path: path.write_bytes(b"rubbish " * 4000),
    "overwritten by zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "damaged behind its first page": _middle,
    "without its tables": _without_tables,
}
ASIDE = {
    "replaced by another file",
    "replaced by a database of a stranger's",
    "cut short",
    "overwritten",
    "overwritten by zeros",
    "damaged behind its first page",
}


@pytest.mark.parametrize("change", ["a full pass", "a change"])
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_present_comes_back_whole(
    engine: _Engine, fault: str, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = engine.path
    before = engine.held()
    assert [one.name for one in path.parent.iterdir()] == [path.name], "a file beside it could be mapped"
    FAULTS[fault](path)
    damaged = path.read_bytes() if path.exists() else b""
    with caplog.at_level(logging.WARNING):
        if change == "a change":
            engine.tell(Phase.DEGRADED)
            before = [(slot, record.replace('"Ready"', '"Degraded"')) for slot, record in before]
        engine.full_pass()
    assert engine.sync.health().error == ""
    assert [slot for slot, _ in engine.held()] == [slot for slot, _ in before]
    last = Phase.DEGRADED if change == "a change" else Phase.READY
    assert {one.record.status.phase for one in engine.sink.records()} == {last}
    assert {one.record.status for one in engine.sink.records()} == set(engine.book.present().values())
    told = [record.getMessage() for record in caplog.records if record.name.startswith("enginebay.status.sinks")]
    aside = [one for one in path.parent.iterdir() if ".damaged-" in one.name]
    if fault in ASIDE:
        assert len(aside) == 1
        assert change == "a change" or aside[0].read_bytes() == damaged
        assert sum("is damaged" in one and "can be deleted" in one for one in told) == 1
        begun = [row for row in read_history(path) if row.phase == "Begun"]
        assert [(row.reason, aside[0].name in row.message) for row in begun] == [("FileDamaged", True)]
    else:
        assert aside == []
    if "deleted" in fault or "replaced" in fault:
        assert sum("was deleted or replaced" in one for one in told) == 1
    caplog.clear()
    engine.tell(Phase.READY, message="again", full=True)
    engine.full_pass()
    assert caplog.records == [], "it is said once"
    shown = {row.slot for row in read_history(path) if row.message == "again"}
    assert shown == {slot.name for slot in SLOTS}, "the history goes on"
    engine.sink.close()


def test_while_something_else_is_in_its_place_it_is_tried_again(engine: _Engine) -> None:
    engine.path.unlink()
    engine.path.mkdir()
    engine.full_pass()
    assert "is no file of its own: move away what stands there" in engine.sync.health().error
    engine.tell(Phase.DEGRADED)
    engine.path.rmdir()
    engine.full_pass()
    assert engine.sync.health().error == ""
    assert {one.record.status.phase for one in engine.sink.records()} == {Phase.DEGRADED}
    engine.sink.close()


def test_a_record_that_is_rubbish_is_written_anew(engine: _Engine) -> None:  # T18
    with closing(sqlite3.connect(engine.path)) as connection:
        connection.execute("UPDATE slots SET record = ? WHERE slot = ?", (b"{", SLOTS[1].name))
        connection.commit()
    engine.full_pass()
    assert engine.sync.health().error == ""
    assert len(engine.sink.records()) == len(SLOTS)
    engine.sink.close()


def test_two_engines_begin_one_new_file(engine: _Engine) -> None:
    """The second that looks finds a good one, and moves nothing."""
    other = _Engine(engine.path, "two")
    other.tell(Phase.READY)
    engine.path.write_bytes(b"rubbish " * 4000)
    for one in (engine, other, engine):
        one.full_pass()
    assert len(engine.held()) == 2 * len(SLOTS)
    assert len([one for one in engine.path.parent.iterdir() if ".damaged-" in one.name]) == 1
    other.sink.close()
    assert len(engine.held()) == len(SLOTS)
    engine.sink.close()


def test_who_comes_while_another_begins_it_anew_waits_for_nobody(engine: _Engine) -> None:
    engine.path.write_bytes(b"rubbish " * 4000)
    with _schema._one_at_a_time(engine.path.parent):
        engine.full_pass()
        assert "BlockingIOError" in engine.sync.health().error
    engine.full_pass()
    assert engine.sync.health().error == ""
    engine.sink.close()


def test_of_damaged_files_the_last_three_are_kept(engine: _Engine) -> None:
    for number in range(5):
        engine.path.write_bytes(f"{number}".encode() * 4000)
        engine.full_pass()
    kept = sorted(one.read_bytes()[:1] for one in engine.path.parent.iterdir() if ".damaged-" in one.name)
    assert kept == [b"2", b"3", b"4"]
    engine.sink.close()


def test_writers_at_one_time_survive_what_happens_to_the_file(tmp_path: Path) -> None:
    """Whatever comes between two calls or into one: errors at most, and all is there once the faults have ended."""
    path = tmp_path / "state" / "status.sqlite3"
    engines = [_Engine(path, name) for name in ("one", "two")]
    raised: list[BaseException] = []
    shown: list[tuple[str, int]] = []
    done, sound, until = threading.Event(), threading.Barrier(len(engines)), time.monotonic() + 60.0

    def work(engine: _Engine) -> None:
        try:
            phase = Phase.READY
            while not done.is_set():
                phase = Phase.DEGRADED if phase is Phase.READY else Phase.READY
                engine.tell(phase)
                engine.full_pass()
            engine.full_pass()
            while engine.sync.health().error and time.monotonic() < until:  # the other begins it anew
                engine.full_pass()
            sound.wait(60)
            engine.full_pass()
            shown.append((engine.sync.health().error, len(engine.sink.records())))
            engine.sink.close()  # here, since a sink is called by one thread alone
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=work, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for fault in (*FAULTS.values(), *FAULTS.values()):
        held = threading.Event()
        for engine in engines:
            engine.sync._acknowledged = partial(_set, held)
        assert held.wait(60)
        try:
            fault(path)
        except (OSError, sqlite3.Error):  # it is another's at this moment, or not there
            continue
    done.set()
    for thread in threads:
        thread.join(60)
    assert raised == []
    assert shown == [("", len(SLOTS))] * 2


def test_at_its_end_an_engine_leaves_no_slot_in_the_new_file(engine: _Engine) -> None:
    engine.path.unlink()
    engine.sink.close()
    assert engine.held() == []
    assert {row.slot for row in read_history(engine.path)} == {slot.name for slot in SLOTS}


def test_a_record_that_was_removed_does_not_come_back(engine: _Engine) -> None:
    engine.sink.remove(SLOTS[0], "a0")
    engine.path.unlink()
    assert engine.sink.read(SLOTS[0]) is None
    assert engine.sink.read(SLOTS[1]) is not None
    tag = engine.sink.write(StatusRecord(status=status(inc="b", slot=SLOTS[0]), version=1), "")
    assert tag == "1"
    engine.sink.close()


def test_whoever_opens_a_good_file_writes_nothing(tmp_path: Path) -> None:
    """Else engines that share it would each take the other's opening for news, and open it again for ever."""
    file = tmp_path / "status.sqlite3"
    _schema.connect(file, wall=1.0)[0].close()
    before = _schema.mark_of(file)
    _schema.connect(file, wall=1.0)[0].close()
    assert _schema.mark_of(file) == before
