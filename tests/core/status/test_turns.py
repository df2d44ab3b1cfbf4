"""Several lives of one engine in one slot: a sink is told of one after the other, and each has its end there."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from enginebay.messages import Phase, Slot, StatusRecord
from support.status import SLOT, Stand, status

READY = Phase.READY


def told(stand: Stand) -> list[tuple[str, Phase]]:
    return [(one.status.incarnation.id, one.status.phase) for one in stand.sink.history]


def end(stand: Stand, inc: str, *, full: bool = False) -> None:
    """It is told to end, does, and nothing is left of it; the sink's thread looks after each."""
    stand.book.advance(inc, Phase.TERMINATING)
    stand.sync.tick(full=full)
    stand.book.terminate(inc, exit_code=0)
    stand.sync.tick(full=full)
    stand.book.end(inc, asked=True)
    stand.sync.tick(full=full)


ENDS = [Phase.TERMINATING, Phase.RECLAIMING, Phase.SUCCEEDED]


@pytest.mark.parametrize("full", [False, True])
def test_who_serves_has_the_record_until_its_end_is_told(full: bool, caplog: pytest.LogCaptureFixture) -> None:  # R9
    stand = Stand()
    stand.tell(status(READY, inc="a"))
    for phase in (Phase.STARTING, Phase.LOADING, READY):
        assert stand.tell(status(phase, inc="b"), full=full) == 0
        assert (stand.sync.health().behind, stand.sync.due()) == (0, None)  # nothing turns in vain
    end(stand, "a", full=full)
    assert told(stand) == [("a", READY), *(("a", phase) for phase in ENDS), ("b", READY)]
    assert stand.sink.removed == []  # the slot held something all the time
    end(stand, "b", full=full)
    assert told(stand)[5:] == [("b", phase) for phase in ENDS]
    assert (stand.sink.removed, stand.sink.records(), stand.book.entries()) == (["b"], [], [])
    assert caplog.messages == []


def test_one_that_ends_before_its_turn_is_told_to_nobody(caplog: pytest.LogCaptureFixture) -> None:  # R9
    stand = Stand()
    stand.tell(status(READY, inc="a"))
    stand.tell(status(Phase.STARTING, inc="b"))
    end(stand, "b")
    assert [one.status.incarnation.id for one in stand.book.entries()] == ["a"]
    stand.tell(status(READY, inc="c"))
    end(stand, "a")
    assert told(stand) == [("a", READY), *(("a", phase) for phase in ENDS), ("c", READY)]
    assert caplog.messages == []


def test_an_end_that_a_sink_has_not_taken_is_told_before_the_next_life() -> None:  # T17
    stand = Stand()
    stand.tell(status(READY, inc="a"))
    stand.sink.error = OSError("down")
    end(stand, "a")
    stand.tell(status(READY, inc="b"))
    assert stand.sync.health().behind == 1
    stand.sink.error, stand.now = None, stand.now + 60.0
    stand.sync.tick()
    assert told(stand) == [("a", READY), ("a", Phase.SUCCEEDED), ("b", READY)]
    assert [one.status.incarnation.id for one in stand.book.entries()] == ["b"]


@pytest.mark.parametrize("last", ["quarantined", "lost"])
def test_one_of_which_something_is_left_holds_nobody_up_for_ever(last: str, caplog: pytest.LogCaptureFixture) -> None:
    stand = Stand()
    stand.tell(status(READY, inc="a"))
    stand.tell(status(READY, inc="b"))
    stand.book.advance("a", Phase.RECLAIMING, reason=last)
    stand.book.leave("a")
    stand.sync.tick()
    assert told(stand) == [("a", READY), ("a", Phase.RECLAIMING), ("b", READY)]
    for message in ("still", "there"):
        held = stand.book.get("a")
        assert held is not None
        stand.book.set(replace(held, message=message))
        stand.now += 10.0
        stand.sync.tick(full=True)
    assert (stand.sink.shown().incarnation.id, stand.sync.health().behind, stand.sync.due()) == ("b", 0, None)
    assert caplog.messages == []  # it is one of ours


def test_one_that_a_stranger_silences_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:  # T5
    stand = Stand()
    stand.sink.write(StatusRecord(status=status(READY, inc="m"), version=3), "")
    stand.tell(status(READY, inc="a"))
    stand.tell(status(READY, inc="z"))
    assert stand.sink.shown().incarnation.id == "z"
    assert len(caplog.messages) == 1
    stand.now += 10.0
    stand.sync.tick(full=True)
    end(stand, "a")
    assert stand.sink.shown().incarnation.id == "z"
    assert len(caplog.messages) == 1


def test_slots_wait_each_for_its_own() -> None:  # R9
    stand, other = Stand(), Slot(group=0, rank=1)
    stand.tell(status(READY, inc="a"))
    stand.tell(status(READY, inc="b"), status(READY, inc="c", slot=other))
    assert (stand.sink.shown(SLOT).incarnation.id, stand.sink.shown(other).incarnation.id) == ("a", "c")
