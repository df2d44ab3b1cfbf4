"""What sinks are told of the lives in a slot when workers take each other's place, on purpose and after a fault."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from enginebay import LLM
from enginebay.engine.roster import Roster, slots_of
from enginebay.engine.supervision import Supervision
from enginebay.errors import EnginebayError, WorkerLost
from enginebay.interfaces import NoOptions, StatusSinkContext
from enginebay.messages import Control, Phase, RankPlace, RestartWorkers, StatusRecord, Swap, WorldPlan
from enginebay.status import StatusManager
from enginebay.status.sinks.memory import MemorySink
from enginebay.status.sinks.sqlite import read_history
from enginebay_uni.executor import UniExecutor
from support.clock import FakeClock, fake_runtime
from support.fake_engines import Installed
from support.swaps import Driven

Make = Callable[..., Driven]

READY, TERMINATING, SUCCEEDED, FAILED = Phase.READY, Phase.TERMINATING, Phase.SUCCEEDED, Phase.FAILED
ANEW = ("runner.options.announce=1",)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[StatusRecord]:
    """What is written to sinks in memory. They have no thread: each change is told in the call that makes it."""
    lock, history, write = threading.RLock(), list[StatusRecord](), MemorySink.write

    def noted(sink: MemorySink, record: StatusRecord, seen: str) -> str:
        tag = write(sink, record, seen)
        history.append(record)
        return tag

    def wake(manager: StatusManager) -> None:
        with lock:
            manager.tick()

    monkeypatch.setattr(StatusManager, "start", lambda manager: None)
    monkeypatch.setattr(StatusManager, "_wake", wake)
    monkeypatch.setattr(MemorySink, "write", noted)
    return history


def lives(history: Sequence[StatusRecord], slot: str = "group-0/rank-0/cpu:0") -> list[list[Phase]]:
    """What was told of each life in the slot, which are told of one after the other."""
    found: dict[str, list[Phase]] = {}
    for record in history:
        status = record.status
        if status.slot.name == slot:
            assert status.incarnation.id == next(reversed(found), None) or status.incarnation.id not in found
            phases = found.setdefault(status.incarnation.id, [])
            if phases[-1:] != [status.phase]:
                phases.append(status.phase)
    return list(found.values())


def restarts(engine: Driven) -> list[int]:
    return [one.restarts for one in engine.core.parts.roster.statuses()]


def kill(engine: Driven) -> None:
    """Break the line to the worker: its loop ends with an error, and its thread with it."""
    executor: Any = engine.core.parts.executor
    assert isinstance(executor, UniExecutor)
    assert executor._session is not None
    executor._session._ours.send(b"not an envelope")


PURPOSES: list[Control] = [
    Swap(runner="fake", sets=ANEW),
    Swap(runner="fake", sets=ANEW, exclusive=True),
    Swap(executor="mp"),
    RestartWorkers(),
]


@pytest.mark.parametrize("command", PURPOSES)
def test_the_old_worker_has_its_end_and_nobody_is_a_stranger(
    make: Make,
    fake: Installed,
    monkeypatch: pytest.MonkeyPatch,
    told: list[StatusRecord],
    command: Control,
    caplog: pytest.LogCaptureFixture,
) -> None:  # R9
    monkeypatch.setenv("PYTHONPATH", fake.environ()["PYTHONPATH"])
    engine = make("status.sinks=['memory']", "recovery.max_restarts=0")
    engine.add("a")
    engine.step()
    engine.do(command)
    old, new = lives(told)
    assert old[-3:] in ([READY, TERMINATING, SUCCEEDED], [TERMINATING, Phase.RECLAIMING, SUCCEEDED])
    assert READY in old
    assert new[-1] is READY
    assert restarts(engine) == [0]
    engine.run()
    assert "holds a later life" not in caplog.text


def test_one_that_fails_beside_another_has_no_part_in_its_slot(
    make: Make, told: list[StatusRecord], caplog: pytest.LogCaptureFixture
) -> None:  # R9
    engine = make("status.sinks=['memory']", "recovery.max_restarts=0")
    with pytest.raises(EnginebayError, match=r"what was in force before goes on$"):
        engine.do(Swap(runner="fake", sets=("runner.options.fail=load_model",)))
    [only] = lives(told)
    assert only[-1] is READY
    engine.do(PURPOSES[0])
    old, new = lives(told)
    assert (old[-2:], new[-1]) == ([TERMINATING, SUCCEEDED], READY)
    assert "holds a later life" not in caplog.text


def test_what_a_fault_begins_is_a_restart_and_what_is_asked_for_is_none(
    make: Make, told: list[StatusRecord], caplog: pytest.LogCaptureFixture
) -> None:  # R1, R9
    engine = make("status.sinks=['memory']", "recovery.longest_wait=0")
    counted = []
    commands = [None, PURPOSES[0], None, RestartWorkers(), Swap(scheduler="priority")]
    for number, command in enumerate(commands):
        engine.add(str(number))
        engine.step()
        if command is None:
            kill(engine)
        else:
            engine.do(command)
        engine.run()
        counted.append(restarts(engine))
    assert counted == [[1], [1], [2], [2], [2]]
    assert [one[-1] for one in lives(told)] == [FAILED, SUCCEEDED, FAILED, SUCCEEDED, READY]
    assert "holds a later life" not in caplog.text


def test_old_workers_that_could_not_be_stopped_hold_nobody_up(
    make: Make, told: list[StatusRecord], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # R9
    engine = make("status.sinks=['memory']")
    old_executor: Any = engine.core.parts.executor
    stop = old_executor.stop

    def broken(deadline: float) -> None:
        stop(deadline)
        raise RuntimeError("not today")

    monkeypatch.setattr(old_executor, "stop", broken)
    engine.do(PURPOSES[0])
    old, new = lives(told)
    assert (old[-1], new[-1]) == (TERMINATING, READY)
    engine.add("a")
    engine.run()
    assert "stopping the workers of before failed" in caplog.text
    assert "holds a later life" not in caplog.text


class _Stopping:
    def stop(self, deadline: float) -> None:
        return


def test_slots_that_a_scale_brings_and_takes_away(
    told: list[StatusRecord], caplog: pytest.LogCaptureFixture
) -> None:  # R9
    runtime, executor = fake_runtime(FakeClock()), cast("Any", _Stopping())
    sink = MemorySink(StatusSinkContext(options=NoOptions(), engine="test", wall=lambda: 0.0))
    supervision = Supervision(runtime, {"memory": sink})
    generation = 0

    def stand(size: int) -> Roster:
        world = WorldPlan(ranks=tuple(RankPlace(rank=rank, local_rank=rank) for rank in range(size)))
        roster = Roster(supervision, slots_of(world, "cpu"), runtime.entropy.branch(str(generation)))
        roster.renew(generation)
        roster.enter(READY)
        return roster

    now = stand(1)
    now.lost(WorkerLost("gone"))
    now.stop(executor, 0.0)
    now.renew(1)
    now.enter(READY)
    counted = [[one.restarts for one in now.statuses()]]
    for generation, size in enumerate((2, 1, 2), 2):  # noqa: B007  # ``stand`` reads it
        before, now = now, stand(size)
        before.stop(executor, 0.0)
        before.leave()
        counted.append([one.restarts for one in now.statuses()])
    now.lost(WorkerLost("gone"))
    now.stop(executor, 0.0)
    now.renew(5)
    counted.append([one.restarts for one in now.statuses()])
    assert counted == [[1], [1, 0], [1], [1, 0], [2, 1]]
    ends = [FAILED, SUCCEEDED, SUCCEEDED, SUCCEEDED, FAILED, Phase.PENDING]
    assert [one[-1] for one in lives(told)] == ends
    second = lives(told, "group-0/rank-1/cpu:1")
    assert second[0] == [Phase.PENDING, READY, TERMINATING, SUCCEEDED]
    assert [one[-1] for one in second] == [SUCCEEDED, FAILED, Phase.PENDING]
    assert caplog.messages == []


def test_the_history_has_each_life_whole(fake: Installed, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the sink's own thread, which may skip what is true for a moment alone."""
    path = tmp_path / "status.sqlite3"
    with LLM(fake.config(), sets=[f"status.sqlite.path={path}"]) as llm:
        llm.generate("say:hi")
        llm.swap(runner="fake", sets=["runner.options.announce=1"])
        llm.restart_workers()
        llm.swap(runner="fake", sets=["runner.options.announce=2"], exclusive=True)
        assert [one.restarts for one in llm.health().workers] == [0]
    rows = [(row.incarnation, row.phase) for row in read_history(path)]
    names = list(dict.fromkeys(name for name, _ in rows))
    assert [[phase for one, phase in rows if one == name][-1] for name in names] == ["Succeeded"] * 4
    assert [name for name, _ in rows] == sorted((name for name, _ in rows), key=names.index)
    assert "holds a later life" not in caplog.text
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM slots").fetchone() == (0,)
