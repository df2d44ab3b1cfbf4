"""Rules that several parts have to hold together: book, sync, manager and roster, on a clock that the test turns."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.recovery import NoWayBack
from enginebay.engine.roster import Roster, slots_of
from enginebay.engine.supervision import Supervision
from enginebay.interfaces import WorkerExit
from enginebay.messages import Phase, Slot, StatusRecord, Truth, WorldPlan
from enginebay.status import StatusManager
from support.clock import FakeClock, fake_runtime
from support.status import SLOT, ScriptedSink, Stand, status

READY = Phase.READY


class Line:
    """A manager with one scripted sink, and a roster of one worker over both; nobody writes but the test."""

    def __init__(self) -> None:
        self.clock, self.sink = FakeClock(), ScriptedSink()
        runtime = fake_runtime(self.clock)
        self.supervision = Supervision(runtime, {"scripted": self.sink})
        self.manager = self.supervision.manager
        self.remains: tuple[str, ...] = ()
        self.roster = Roster(self.supervision, slots_of(WorldPlan(), "cpu"), runtime.entropy, lambda: self.remains)
        self.roster.renew(0)
        self.roster.enter(READY)
        self.manager.tick()

    def stop(self, deadline: float) -> None:
        """As an executor does."""

    def die(self) -> str:
        """The worker ends by a signal; returns its incarnation."""
        (gone,) = self.roster.incarnations
        self.roster.exited(WorkerExit(rank=0, incarnation=gone, signal=9))
        self.roster.stop(self, self.clock.time)  # type: ignore[arg-type]  # all that is asked of it is to stop
        return gone

    def phase(self) -> Phase:
        """What the book says of the worker in force."""
        (found,) = self.roster.statuses()
        return found.phase


def test_a_worker_may_be_started_on_local_evidence_while_sinks_are_down() -> None:  # T15
    line = Line()
    line.sink.error = OSError("down")
    gone = line.die()
    before = line.clock.time
    line.roster.reclaim(30.0)
    assert line.clock.time == before  # no sink was waited for
    line.roster.renew(1)
    line.roster.enter(READY)
    line.manager.tick()
    assert line.sink.shown(line.roster.slots[0]).incarnation.id == gone  # all that the sink knows
    line.sink.error, line.clock.time = None, before + 60.0
    line.manager.tick()
    assert line.sink.shown(line.roster.slots[0]).incarnation.id == line.roster.incarnations[0]


def test_no_worker_and_no_delete_while_something_is_held() -> None:  # T14
    line = Line()
    line.remains = ("segment s",)
    line.die()
    line.manager.tick(full=True)
    assert (line.phase(), line.sink.removed) == (Phase.RECLAIMING, [])
    with pytest.raises(NoWayBack, match="quarantined"):
        line.roster.reclaim(30.0)
    line.manager.tick(full=True)
    assert (line.phase(), line.sink.removed) == (Phase.RECLAIMING, [])


def test_a_late_removal_leaves_a_successor_of_another_run_alone() -> None:  # T7
    stand = Stand()
    stand.tell(status(READY, inc="a"))
    stand.book.terminate("a", signal=9)
    stand.book.end("a", asked=False)
    write = stand.sink.write

    def write_and_be_overtaken(record: StatusRecord, seen: str) -> str:
        tag = write(record, seen)
        write(StatusRecord(status=status(READY, inc="b"), version=1), tag)
        return tag

    stand.sink.write = write_and_be_overtaken  # type: ignore[method-assign]  # between the last write and the removal
    stand.sync.tick()
    assert stand.sink.removed == ["a"]
    assert stand.sink.shown().incarnation.id == "b"
    assert stand.book.get("a") is None


def test_a_success_is_not_taken_back_by_what_is_told_late() -> None:  # T8
    stand = Stand()
    stand.tell(status(READY))
    stand.book.advance("a", Phase.TERMINATING)
    stand.book.end("a", asked=True)
    assert not stand.book.terminate("a", signal=9, reason="SIGKILL")
    assert not stand.book.terminate("a", exit_code=3)
    assert stand.book.terminate("a", exit_code=0)
    (entry,) = stand.book.entries()
    assert (entry.status.phase, entry.status.signal, entry.status.exit_code) == (Phase.SUCCEEDED, None, 0)
    assert stand.book.num_illegal == 0


def test_an_end_that_was_called_too_early_is_told_with_its_cause() -> None:  # T27, T10
    line = Line()
    (gone,) = line.roster.incarnations
    line.supervision.book.advance(gone, Phase.FAILED, reason="Suspected")
    line.clock.time += 5.0
    line.manager.tick()
    shown = line.sink.shown(line.roster.slots[0])
    assert (shown.phase, shown.reason) == (READY, "")
    line.die()
    line.manager.tick()
    last = line.sink.history[-1].status
    assert (last.phase, last.signal, line.sink.removed) == (Phase.FAILED, 9, [gone])


def test_an_hour_without_the_sink() -> None:  # T17
    clock, sink = FakeClock(), ScriptedSink()
    manager = StatusManager(fake_runtime(clock), {"scripted": sink})
    slots = [Slot(group=0, rank=rank) for rank in range(4)]
    sink.error = OSError("down")
    calls: list[float] = []
    for second in range(3600):
        clock.time += 1.0
        for slot in slots:
            manager.book.set(status(READY, inc=f"a{slot.rank}", slot=slot, message=str(second)))
        before = sink.calls
        manager.tick(full=second % 10 == 0)
        assert sink.calls - before in (0, 2), "two slots that are not taken are enough of a pass"
        calls += [clock.time] if sink.calls > before else []
    assert len(manager.book.entries()) == len(slots)
    gaps = [after - before for before, after in pairwise(calls)]
    assert gaps[:3] == sorted(gaps[:3])
    assert len(set(gaps[6:])) > 1, "no jitter"
    assert min(gaps[6:]) >= 24.0
    assert max(gaps) <= 31.0
    sink.error, clock.time = None, clock.time + 60.0
    manager.tick()
    assert [one.status.message for one in sink.history] == ["3599"] * len(slots)


@given(st.lists(st.sampled_from([READY, Phase.DEGRADED, Phase.LOADING, "die", "tick", "late"]), max_size=12))
def test_no_sink_is_ever_shown_an_end_that_is_ready(events: list[Any]) -> None:  # T20
    line, gone = Line(), ""
    for event in events:
        line.clock.time += 2.0
        match event:
            case "die":
                gone = line.die()
                line.roster.renew(len(events))
            case "late":
                line.supervision.book.advance(gone, READY)
                line.supervision.book.terminate(gone, exit_code=1)
            case "tick":
                line.manager.tick(full=True)
            case Phase():
                line.roster.enter(event)
    line.manager.tick(full=True)
    for record in line.sink.history:
        ready = record.status.condition("Ready")
        assert ready is not None
        assert (ready.truth is Truth.TRUE) is (record.status.phase is READY)


@given(st.lists(st.sampled_from(["set", "terminate", "end", "advance", "tick", "full"]), max_size=15))
def test_once_finished_always_finished(events: list[str]) -> None:  # T29
    stand, finished = Stand(), False
    stand.book.set(status(READY))
    for number, event in enumerate(events):
        match event:
            case "set":
                stand.book.set(status(READY, message=str(number)))
            case "terminate":
                stand.book.terminate("a", exit_code=1, message=str(number))
            case "end":
                stand.book.end("a", asked=bool(number % 2))
            case "advance":
                stand.book.advance("a", Phase.TERMINATING)
            case _:
                stand.now += 1.0
                stand.sync.tick(full=event == "full")
        for entry in stand.book.entries():
            assert entry.record.finished or not finished
            finished = entry.record.finished
        if not stand.book.entries():  # it was told, and let go
            assert finished
            assert stand.sink.read(SLOT) is None
            return
