"""One sink and the book: one write of the newest, again when it did not go, and nothing over what is another's."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from enginebay.messages import Condition, Incarnation, Phase, Slot, StatusRecord, Truth
from support.status import SLOT, Stand, status

READY = Phase.READY


def test_three_changes_are_one_write() -> None:  # T4
    stand = Stand()
    assert stand.tell(status(Phase.STARTING), status(Phase.LOADING), status(READY)) == 1
    assert stand.sink.shown().phase is READY


def test_a_late_status_is_not_written_over_a_successor() -> None:  # T5
    stand = Stand()
    stand.tell(status(READY, inc="b"))
    assert stand.tell(status(Phase.DEGRADED, inc="a")) == 0
    assert stand.book.get("a") is None
    assert stand.sink.shown().incarnation.id == "b"


def test_a_later_life_that_nobody_here_knows_silences_that_sink_alone(caplog: pytest.LogCaptureFixture) -> None:  # T5
    stand = Stand()
    stand.sink.write(StatusRecord(status=status(READY, inc="z"), version=3), "")
    assert stand.tell(status(Phase.STARTING), status(READY), full=True) == 0
    assert stand.book.advance("a", Phase.DEGRADED)
    stand.sync.tick(full=True)
    assert (stand.sink.shown().incarnation.id, stand.sync.health().behind, stand.sync.due()) == ("z", 0, None)
    where = "status sink memory holds a later life of group-0/rank-0/cpu than this engine's (run 0, generation 25)"
    assert caplog.messages == [f"{where}: it is told nothing while that stands there"]
    stand.sink.remove(SLOT, "z")
    stand.sync.tick(full=True)
    assert (stand.sink.shown().incarnation.id, stand.sink.shown().phase) == ("a", Phase.DEGRADED)


def test_the_end_of_one_that_a_sink_was_not_told_of_is_forgotten() -> None:
    stand = Stand()
    stand.sink.write(StatusRecord(status=status(READY, inc="z"), version=3), "")
    stand.tell(status(READY))
    stand.book.terminate("a", signal=9)
    stand.sync.tick()
    assert stand.book.get("a") is not None  # nobody has said that nothing is left of it
    stand.book.end("a", asked=False)
    stand.sync.tick()
    assert (stand.book.get("a"), stand.sink.removed, stand.sink.shown().incarnation.id) == (None, [], "z")


_HELD = st.tuples(st.sampled_from(["x", "y"]), st.integers(0, 2), st.integers(0, 2), st.sampled_from(list(Phase)))


@given(st.lists(st.one_of(st.none(), _HELD, st.sampled_from(["tick", "full", "change"])), max_size=20))
def test_nothing_that_a_sink_holds_takes_a_living_worker_out_of_the_book(events: list[object]) -> None:  # T5
    stand, life = Stand(), replace(status(READY), incarnation=Incarnation(id="a", epoch=1, generation=1))
    stand.book.set(life)
    for number, event in enumerate(events):
        stand.now += 5.0
        match event:
            case "tick" | "full":
                stand.sync.tick(full=event == "full")
            case "change":
                assert stand.book.set(replace(life, message=str(number)))
            case None:
                stand.sink._held.clear()
            case (str(inc), int(epoch), int(generation), Phase() as phase):
                other = replace(status(phase), incarnation=Incarnation(id=inc, epoch=epoch, generation=generation))
                held = stand.sink.read(SLOT)
                stand.sink.write(StatusRecord(status=other, version=1), held.tag if held else "")
        assert stand.book.present()[SLOT].incarnation.id == "a"
    stand.now += 5.0
    stand.sync.tick(full=True)
    shown, later = stand.sink.shown().incarnation, (1, 1)
    assert shown.id == "a" or shown.order > later
    assert stand.sync.health().behind == 0


def test_a_successor_is_written_over_what_was_there() -> None:
    stand, other = Stand(), Stand()
    stand.tell(status(READY, inc="a"))
    other.sync._sink = other.sink = stand.sink
    assert other.tell(status(READY, inc="b")) == 1
    assert stand.sink.shown().incarnation.id == "b"


def test_a_delete_does_not_touch_a_successor() -> None:  # T7
    stand = Stand()
    stand.tell(status(READY, inc="a"))
    stand.sink.write(StatusRecord(status=status(READY, inc="b"), version=1), stand.sink.read(SLOT).tag)  # type: ignore[union-attr]  # it was written
    stand.sink.remove(SLOT, "a")
    assert stand.sink.shown().incarnation.id == "b"


def test_a_record_goes_once_its_end_is_acknowledged() -> None:  # T15
    stand = Stand()
    stand.tell(status(READY))
    stand.book.terminate("a", exit_code=1)
    stand.sync.tick()
    assert (stand.sink.shown().phase, stand.sink.removed) == (Phase.RECLAIMING, [])  # T14
    stand.book.end("a", asked=False)
    stand.sink.error = OSError("down")
    stand.sync.tick()
    assert stand.book.get("a") is not None
    stand.sink.error, stand.now = None, 200.0
    stand.sync.tick()
    assert [one.status.phase for one in stand.sink.history] == [READY, Phase.RECLAIMING, Phase.FAILED]
    assert (stand.sink.removed, stand.sink.records(), stand.book.get("a")) == (["a"], [], None)


def test_a_sink_that_was_down_gets_the_last_state_in_one_write() -> None:  # T17
    stand = Stand()
    stand.tell(status(Phase.STARTING))
    stand.sink.error = OSError("no route")
    calls = []
    for number in range(1000):
        stand.now += 0.125
        stand.book.set(status(READY if number % 2 else Phase.DEGRADED, message=str(number)))
        before = stand.sink.calls
        stand.sync.tick()
        if stand.sink.calls > before:
            calls.append(stand.now)
    gaps = [b - a for a, b in itertools.pairwise(calls)]
    assert gaps[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(gaps) <= 30.0
    health = stand.sync.health()
    assert (health.error, health.behind) == ("OSError: no route", 1)
    assert health.failures == len(calls)
    stand.sink.error, stand.now = None, stand.now + 31
    assert stand.tell() == 1
    assert stand.sink.shown().message == "999"
    assert stand.sync.health().failures == stand.sync.health().behind == 0


def test_what_somebody_else_wrote_is_put_right_and_their_conditions_stay() -> None:  # T18
    stand = Stand()
    stand.tell(status(READY))
    theirs = Condition(kind="Drained", truth=Truth.FALSE, owner="operator")
    stand.sink.edit(lambda one: replace(one, phase=Phase.LOADING, conditions=(*one.conditions, theirs)))
    stand.sync.tick()
    assert stand.sink.shown().phase is Phase.LOADING
    stand.sync.tick(full=True)
    assert stand.sink.shown().phase is READY
    assert stand.sink.shown().condition("Drained", "operator") == theirs
    calls = len(stand.sink.history)
    stand.sync.tick(full=True)
    assert len(stand.sink.history) == calls


def test_a_record_that_was_deleted_is_written_again() -> None:
    stand = Stand()
    stand.tell(status(READY))
    stand.sink.remove(SLOT, "a")
    stand.sync.tick(full=True)
    assert stand.sink.shown().phase is READY


@pytest.mark.parametrize("error", [OSError("x"), RuntimeError("y"), ValueError("z"), MemoryError()])
def test_whatever_a_sink_raises_is_tried_again(error: BaseException) -> None:  # T21
    stand = Stand()
    stand.sink.error = error
    stand.tell(status(READY))
    stand.sink.error, stand.now = None, 130.0
    assert stand.tell() == 1


def test_an_interrupt_goes_on() -> None:
    stand = Stand()
    stand.sink.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        stand.tell(status(READY))


def test_acknowledged_versions_of_the_unknown_are_dropped() -> None:  # T25
    stand = Stand()
    stand.tell(status(READY, inc="a"))
    stand.book.terminate("a", signal=9)
    stand.book.end("a", asked=False)
    stand.book.set(status(READY, inc="b"))
    stand.sync.tick()
    assert set(stand.sync._seen) == {"a", "b"}
    stand.sync.tick(full=True)
    assert set(stand.sync._seen) == {"b"}


def test_an_end_that_may_not_be_one_is_told_when_it_is() -> None:  # T27
    stand = Stand()
    alive = Condition(kind="ProcessAlive", truth=Truth.UNKNOWN)
    stand.tell(status(READY, conditions=(alive,)))
    assert stand.tell(status(Phase.FAILED, reason="Hung", conditions=(alive,)), full=True) == 0
    assert stand.sink.shown().phase is READY
    assert stand.sync.due() is None  # nothing turns in vain
    stand.book.terminate("a", signal=9)
    stand.sync.tick()
    assert (stand.sink.shown().phase, stand.sink.shown().reason) == (Phase.FAILED, "Hung")


def test_chatter_is_told_once_in_a_window() -> None:  # T28
    stand = Stand()
    writes = 0
    for percent in range(100):
        writes += stand.tell(status(Phase.LOADING, message=f"{percent} %"))
        stand.now += 0.05
    assert writes == 5
    due = stand.sync.due()
    assert due is not None
    assert stand.now < due <= stand.now + 1.0
    assert stand.tell(status(READY)) == 1
    assert stand.tell(status(Phase.TERMINATING)) == 1
    stand.book.terminate("a", exit_code=0)
    stand.book.end("a", asked=True)
    assert stand.tell() == 1


def test_the_wait_is_that_of_the_acknowledged_change() -> None:
    stand = Stand()
    stand.tell(status(Phase.LOADING))
    stand.now += 50
    stand.book.set(status(READY))
    stand.now += 2
    stand.sync.tick()
    assert [(record.version, waited) for record, waited in stand.latencies] == [(1, 0.0), (2, 2.0)]


_EVENTS = st.sampled_from(["change", "tick", "full", "down", "up", "edit", "delete", "die", "end", "next", "later"])


@given(st.lists(_EVENTS, max_size=40))
def test_whatever_happens_the_sink_says_in_the_end_what_the_book_says(events: list[str]) -> None:
    stand, generation = Stand(), 0
    stand.book.set(status(READY))
    for number, event in enumerate(events):
        inc = chr(ord("a") + generation)
        match event:
            case "change" if (held := stand.book.get(inc)) is not None:
                stand.book.set(replace(held, message=str(number)))
            case "tick" | "full":
                stand.sync.tick(full=event == "full")
            case "down":
                stand.sink.error = OSError("down")
            case "up":
                stand.sink.error = None
            case "edit" if stand.sink.records():
                stand.sink.edit(lambda one: replace(one, message="edited"))
            case "delete" if stand.sink.records():
                stand.sink._held.clear()
            case "die":
                stand.book.terminate(inc, signal=9)
            case "end":
                stand.book.terminate(inc, signal=9)
                stand.book.end(inc, asked=False)
            case "next" if generation < 20:
                stand.book.terminate(inc, signal=9)
                stand.book.end(inc, asked=False)
                generation += 1
                stand.book.set(status(READY, inc=chr(ord("a") + generation)))
            case "later":
                stand.now += 7.0
        assert len(stand.book.entries()) <= 4
    stand.sink.error = None
    for _ in range(3):
        stand.now += 60.0
        stand.sync.tick(full=True)
    assert stand.sync.health().behind == 0
    entries = stand.book.entries()
    assert len(entries) <= 1
    order = [record.status.incarnation.order for record in stand.sink.history]
    assert order == sorted(order)
    if entries:
        shown, said = stand.sink.shown(), entries[0].status
        assert (shown.phase, shown.message, shown.incarnation) == (said.phase, said.message, said.incarnation)
    else:
        assert not stand.sink.records()
    assert stand.sync.due() is None


@pytest.mark.parametrize("end", ["fails", "takes over"])
def test_one_that_serves_stays_known_while_another_is_started_beside_it(end: str) -> None:  # R9
    stand = Stand()
    stand.tell(status(READY, inc="a"))
    stand.tell(status(Phase.STARTING, inc="b"), full=True)
    assert [one.status.incarnation.id for one in stand.book.entries()] == ["a", "b"]
    gone = "b" if end == "fails" else "a"
    if end != "fails":
        stand.book.advance("b", READY)
    stand.book.terminate(gone, exit_code=1)
    stand.book.end(gone, asked=False)
    for _ in range(2):
        stand.now += 10.0
        stand.sync.tick(full=True)
    left = "a" if end == "fails" else "b"
    assert [one.status.incarnation.id for one in stand.book.entries()] == [left]
    assert (stand.sink.shown().incarnation.id, stand.sink.shown().phase) == (left, READY)


def test_one_slot_that_a_sink_does_not_take_keeps_no_other_from_its_turn() -> None:  # T21
    stand, bad = Stand(), Slot(group=0, rank=7)
    write = stand.sink.write

    def picky(record: StatusRecord, seen: str) -> str:
        if record.status.slot == bad:
            raise OSError("not that one")
        return write(record, seen)

    stand.sink.write = picky  # type: ignore[method-assign]  # the sink that errs
    stand.book.set(status(READY, inc="z", slot=bad))
    stand.tell(status(READY, inc="a"))
    assert stand.sink.shown().incarnation.id == "a"
    assert stand.sync.health().error.endswith("not that one")


def test_a_sink_that_has_failed_is_asked_once_more_before_it_is_let_go() -> None:
    stand = Stand()
    stand.sink.error = OSError("down")
    stand.tell(status(READY))
    stand.sink.error = None
    stand.sync.tick(full=True)
    assert stand.sink.records() == []
    stand.sync.tick(full=True, last=True)
    assert stand.sink.shown().phase is READY
