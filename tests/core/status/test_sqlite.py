"""The SQLite sink: one record per slot, a bounded history, private files, and what dead engines left."""

from __future__ import annotations

import itertools
import logging
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from enginebay.interfaces import StatusConflict, StatusSinkContext
from enginebay.messages import Condition, Phase, Slot, StatusRecord, Truth
from enginebay.status import SinkSync, StatusBook
from enginebay.status.sinks import _schema
from enginebay.status.sinks.sqlite import SqliteSink, SqliteSinkOptions, read_history
from enginebay.status.statehome import next_epoch, state_home
from support.status import SLOT, status


def _sink(path: Path, engine: str = "one", **options: int) -> SqliteSink:
    return SqliteSink(
        StatusSinkContext(options=SqliteSinkOptions(path=path, **options), engine=engine, wall=lambda: 1000.0)  # type: ignore[arg-type]  # by name
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "status.sqlite3"


def test_a_record_goes_in_and_out_whole(path: Path) -> None:
    sink, record = _sink(path), StatusRecord(status=status(Phase.READY, exit_code=None, message="é"), version=7)
    tag = sink.write(record, "")
    held = sink.read(SLOT)
    assert held is not None
    assert (held.record, held.tag) == (record, tag)
    assert sink.records() == [held]
    assert sink.read(Slot(group=1, rank=0)) is None
    sink.close()


def test_a_write_over_what_was_not_seen_is_refused(path: Path) -> None:
    sink = _sink(path)
    tag = sink.write(StatusRecord(status=status(inc="b"), version=1), "")
    for seen in ("", "99"):
        with pytest.raises(StatusConflict) as caught:
            sink.write(StatusRecord(status=status(inc="a"), version=1), seen)
        assert caught.value.held is not None
        assert caught.value.held.record.status.incarnation.id == "b"
    sink.remove(SLOT, "a")  # T7
    assert sink.write(StatusRecord(status=status(inc="b"), version=2), tag) != tag
    sink.remove(SLOT, "b")
    assert sink.read(SLOT) is None
    with pytest.raises(StatusConflict) as caught:
        sink.write(StatusRecord(status=status(inc="b"), version=3), tag)
    assert caught.value.held is None
    sink.close()


def test_history_is_kept_and_bounded(path: Path) -> None:
    sink, tag = _sink(path, history=5), ""
    for version in range(1, 9):
        tag = sink.write(StatusRecord(status=status(Phase.LOADING, message=f"{version}"), version=version), tag)
    assert [(row.version, row.phase, row.wall) for row in read_history(path)] == [
        (version, "Loading", 1000.0) for version in range(4, 9)
    ]
    sink.close()
    assert [row.version for row in read_history(path, limit=2)] == [7, 8]
    assert read_history(path.with_name("none")) == []


def test_history_says_nothing_twice(path: Path) -> None:
    """What has changed of a record may be nothing that a row has: what a worker's end waits for, say."""
    book = StatusBook(now=lambda: 0.0, wall=lambda: 1000.0, lock=nullcontext(), sinks=["sqlite"])
    sink = _sink(path)
    sync = SinkSync("sqlite", sink, book, now=lambda: 0.0, draw=lambda: 0.0)
    book.set(status(Phase.READY))
    sync.tick(full=True)
    book.terminate("a", signal=9)
    for number in range(3):
        book.set_condition("a", Condition(kind="Reclaimed", truth=Truth.FALSE, message=str(number)))
        sync.tick(full=True)
        held = sink.read(SLOT)
        assert held is not None
        assert held.record.status.condition("Reclaimed").message == str(number)  # type: ignore[union-attr]  # it has one
    book.advance("a", Phase.RECLAIMING, reason="Quarantined", message="not free")
    sync.tick(full=True)
    rows = [(row.phase, row.reason) for row in read_history(path)]
    assert rows == [("Ready", ""), ("Reclaiming", "Exited"), ("Reclaiming", "Quarantined")]
    sink.close()


@pytest.mark.parametrize("late", list(itertools.product([False, True], repeat=2)))
def test_history_leaves_out_what_came_faster_than_it_was_written(path: Path, late: tuple[bool, bool]) -> None:  # T4
    """A stop may be over before anybody writes: then it has no ``Terminating``. What is there is in its order."""
    book = StatusBook(now=lambda: 0.0, wall=lambda: 1000.0, lock=nullcontext(), sinks=["sqlite"])
    sink = _sink(path)
    sync = SinkSync("sqlite", sink, book, now=lambda: 0.0, draw=lambda: 0.0)
    book.set(status(Phase.READY))
    sync.tick()
    for end, is_late in (
        (lambda: book.advance("a", Phase.TERMINATING), late[0]),
        (lambda: book.terminate("a", exit_code=0), late[1]),
        (lambda: book.end("a", asked=True), False),
    ):
        end()
        if not is_late:
            sync.tick()
    seen = [Phase.READY, *([] if late[0] else [Phase.TERMINATING]), *([] if late[1] else [Phase.RECLAIMING])]
    assert [row.phase for row in read_history(path)] == [*seen, Phase.SUCCEEDED]
    assert sync.health().behind == 0
    sink.close()


def test_two_engines_share_the_file_and_not_the_slots(path: Path) -> None:
    one, two = _sink(path, "one"), _sink(path, "two")
    one.write(StatusRecord(status=status(inc="a"), version=1), "")
    two.write(StatusRecord(status=status(inc="b"), version=1), "")
    assert [held.record.status.incarnation.id for held in one.records()] == ["a"]
    two.close()
    assert [held.record.status.incarnation.id for held in one.records()] == ["a"]
    one.close()


_DIES = """
import os, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from support.status import status
from enginebay.interfaces import StatusSinkContext
from enginebay.messages import Phase, StatusRecord
from enginebay.status.sinks import _schema
from enginebay.status.sinks.sqlite import SqliteSink, SqliteSinkOptions
options = SqliteSinkOptions(path=Path(sys.argv[1]))
sink = SqliteSink(StatusSinkContext(options=options, engine="dead", wall=lambda: 500.0))
sink.write(StatusRecord(status=status(Phase.READY), version=3), "")
os._exit(9)
"""


def test_what_a_dead_engine_left_is_gone_and_not_made_up(path: Path) -> None:  # T22
    tests = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", _DIES, str(path), tests], check=False, timeout=60)
    assert done.returncode == 9
    sink = _sink(path, "next")
    assert sink.records() == []
    rows = [(row.engine, row.phase, row.reason, row.wall) for row in read_history(path)]
    assert rows == [("dead", "Ready", "", 500.0), ("dead", "Gone", "EngineGone", 1000.0)]
    sink.close()


def test_a_living_engine_s_records_stay(path: Path) -> None:
    one = _sink(path, "one")
    one.write(StatusRecord(status=status(Phase.READY), version=1), "")
    two = _sink(path, "two")
    assert two.records() == []
    assert len(one.records()) == 1
    assert [row.phase for row in read_history(path)] == ["Ready"]
    one.close()
    two.close()


def test_nobody_else_can_read_it(path: Path) -> None:
    sink = _sink(path)
    sink.write(StatusRecord(status=status(), version=1), "")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()} == {0o600}
    sink.close()


@pytest.mark.parametrize("content", [b"not a database, and longer than its header would be" * 50, b"\0" * 4096])
def test_a_damaged_file_is_moved_aside(path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    sink = _sink(path)
    with caplog.at_level(logging.WARNING):
        sink.write(StatusRecord(status=status(), version=1), "")
    assert len(sink.records()) == 1
    sink.close()
    assert path.with_name("status.sqlite3.damaged-1000").read_bytes() == content
    assert "is damaged" in caplog.text


def test_a_later_format_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(sqlite3.OperationalError, match="has format 9"):
        _sink(path).records()


def test_epochs_only_grow(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert [next_epoch(folder, 1e9) for _ in range(3)] == [1, 2, 3]
    assert stat.S_IMODE((folder / "epoch").stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"rubbish", b"-3", b"\xff\x00", b"1.5"])
def test_a_damaged_epoch_begins_behind_all_that_were(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "epoch").write_bytes(content)
    assert [next_epoch(tmp_path, 1.7e9) for _ in range(2)] == [1_700_000_000, 1_700_000_001]


def test_a_file_that_others_could_read_is_made_private(path: Path) -> None:
    path.parent.mkdir()
    path.touch(mode=0o644)
    _sink(path).records()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_record_of_a_dead_engine_that_cannot_be_read_keeps_no_other_out(path: Path) -> None:
    _sink(path).records()
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO engines VALUES ('dead', 0.0, 'another boot', 'ns', 1, 1)")
        connection.execute("INSERT INTO slots VALUES ('dead', 'group-0/rank-0/cpu', 'x', 1, ?)", (b'{"phase": "New"}',))
    connection.close()
    sink = _sink(path, "two")
    sink.write(StatusRecord(status=status(), version=1), "")
    assert len(sink.records()) == 1
    sink.close()


def test_where_state_lies() -> None:
    assert state_home({"ENGINEBAY_STATE": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a")
    assert state_home({"XDG_STATE_HOME": "/b"}) == Path("/b/enginebay")
    assert state_home({}) == Path(os.path.expanduser("~/.local/state/enginebay"))


def test_an_engine_that_could_not_enter_enters_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody would know, after its end, whose slots these were."""
    monkeypatch.setattr(_schema, "_BUSY_SECONDS", 0.01)
    _sink(path, "other").records()
    with sqlite3.connect(path, isolation_level=None) as other:
        sink = _sink(path)
        other.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                sink.write(StatusRecord(status=status(), version=1), "")
        other.execute("ROLLBACK")
        sink.write(StatusRecord(status=status(), version=1), "")
        assert [name for (name,) in other.execute("SELECT engine FROM engines ORDER BY engine")] == ["one", "other"]
    other.close()
    sink.close()


def test_a_write_that_finds_the_disk_full_leaves_the_sink_usable(path: Path) -> None:
    sink = _sink(path)
    tag = sink.write(StatusRecord(status=status(), version=1), "")
    assert sink._connection is not None
    (pages,) = sink._connection.execute("PRAGMA page_count").fetchone()
    sink._connection.execute(f"PRAGMA max_page_count = {pages}")
    long = StatusRecord(status=status(message="x" * 100_000), version=2)
    for _ in range(2):
        with pytest.raises(sqlite3.OperationalError, match="full"):
            sink.write(long, tag)
    sink._connection.execute("PRAGMA max_page_count = 1000000")
    assert sink.read(SLOT) is not None
    assert sink.write(long, tag) != tag
    sink.close()
