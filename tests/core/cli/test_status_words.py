"""How ``enginebay status`` puts workers, sinks, changes and a history into words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebay.cli import main
from enginebay.cli._workers import changes, history_line, rows
from enginebay.interfaces import StatusSinkContext
from enginebay.messages import (
    Condition,
    ControlDone,
    EngineHealth,
    Incarnation,
    Phase,
    SinkState,
    Slot,
    Stage,
    StatusRecord,
    Truth,
    WorkerStatus,
)
from enginebay.status.sinks.sqlite import HistoryRow, SqliteSink, SqliteSinkOptions


def main_exit(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*argv])
    return int(ended.value.code or 0)


SLOT = Slot(group=0, rank=1, device="cuda:1")


def done(phase: Phase, *conditions: Condition, reason: str = "", message: str = "", why: str = "") -> ControlDone:
    status = WorkerStatus(
        slot=SLOT,
        incarnation=Incarnation(id="i", pid=7),
        phase=phase,
        reason=reason,
        message=message,
        restarts=2,
        conditions=conditions,
    )
    sinks = (SinkState(name="sqlite"), SinkState(name="http", failures=3, error="refused", behind=1))
    health = EngineHealth(healthy=not why, why=why, workers=(status,), sinks=sinks, wall=5000.0)
    return ControlDone(facts={"state": "ready"}, health=health)


def test_a_worker_that_was_started_says_how_long_it_took() -> None:  # T24
    ready = Condition(kind="Ready", truth=Truth.TRUE, since=4990.0)
    said = done(Phase.READY, ready)
    assert said.health is not None
    stages = (Stage(phase=Phase.INIT_DEVICE, begun=0.0, ended=0.4), Stage(phase=Phase.LOADING, begun=0.4, ended=1.6))
    for ended, words in ((stages, ", ready after 1.6 s: InitDevice 0.4, Loading 1.2"), (stages[:1], ""), ((), "")):
        shown = (*ended, Stage(phase=Phase.WARMUP, begun=1.6)) if len(ended) == 1 else ended
        worker = replace(said.health.workers[0], stages=shown)
        row = rows(replace(said, health=replace(said.health, workers=(worker,))))[1]
        assert row == ("group-0/rank-1/cuda:1", f"Ready for 10 s, pid 7, 2 restarts{words}")


def test_a_row_for_each_worker_and_sink() -> None:
    ready = Condition(kind="Ready", truth=Truth.TRUE, since=5000.0 - 3725)
    assert rows(done(Phase.READY, ready)) == [
        ("state", "ready"),
        ("group-0/rank-1/cuda:1", "Ready for 1 h 2 min, pid 7, 2 restarts"),
        ("sink sqlite", "takes statuses"),
        ("sink http", "failed 3 times in a row, 1 records behind: refused"),
    ]


def test_what_holds_a_worker_back_is_said() -> None:
    waits = Condition(kind="BackOff", truth=Truth.TRUE, message="restart 3 follows in 4 s: gone")
    said = dict(rows(done(Phase.PENDING, waits)))[SLOT.name]
    assert said == "Pending, pid 7, 2 restarts; BackOff: restart 3 follows in 4 s: gone"


def test_only_changes_are_told() -> None:
    known: dict[str, str] = {}
    told = []
    lost = done(Phase.FAILED, reason="SIGKILL", message="rank 1: gone", why="group-0/rank-1/cuda:1 is Failed")
    for answer in (done(Phase.READY), done(Phase.READY), lost):
        told.append(changes(known, answer))
        known |= told[-1]
    assert told == [
        {"health": "healthy", SLOT.name: "Ready"},
        {},
        {"health": "group-0/rank-1/cuda:1 is Failed", SLOT.name: "Failed (SIGKILL: rank 1: gone)"},
    ]


def test_a_line_of_history() -> None:
    row = HistoryRow(0.0, "engine", SLOT.name, "i", 3, "Failed", "SIGKILL", "gone", None, 9)
    assert history_line(row)[1:] == ("engine", "group-0/rank-1/cuda:1", "Failed (SIGKILL: gone)")


def test_the_history_is_read_from_the_sinks_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "status.sqlite3"
    sink = SqliteSink(StatusSinkContext(options=SqliteSinkOptions(path=path), engine="e", wall=lambda: 0.0))
    (status,) = (done(Phase.LOADING).health or EngineHealth(healthy=True)).workers
    sink.write(StatusRecord(status=status, version=1), "")
    sink.close()
    assert main_exit("status", "--history", "--file", str(path)) == 0
    assert re.fullmatch(r"  \S+ \S+  e  group-0/rank-1/cuda:1  Loading\n", capsys.readouterr().out)


def test_where_there_is_no_history_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.sqlite3"
    assert main_exit("status", "--history", "--file", str(path)) == 2
    assert capsys.readouterr().err == (
        f"enginebay: {path} holds no history: the sqlite sink, see [status] in the config, has written none\n"
    )


def test_of_a_damaged_history_it_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "status.sqlite3"
    path.write_bytes(b"rubbish " * 4000)
    assert main_exit("status", "--history", "--file", str(path)) == 2
    assert capsys.readouterr().err == (
        f"enginebay: the history in {path} cannot be read: file is not a database; the file is damaged. An engine that "
        "writes to it moves it aside within ten seconds and begins a new one, as does the next that starts; sqlite3's "
        ".recover may read what is in it\n"
    )
