"""The conformance suite of status sinks: subclass it, name your sink, and run pytest.

::

    from enginebay.testing import StatusSinkSuite

    class TestFolder(StatusSinkSuite):
        name = "folder"                           # the installed name
        options: ClassVar = {"history": 10}       # as under [status.folder]

Options that are known at run time only, such as a server's address, come from the fixture ``sink_options``.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from enginebay.interfaces import StatusConflict, StatusSink, Stored
from enginebay.messages import Phase, Slot
from enginebay.testing._status_sink_base import (
    SLOT,
    SLOTS,
    TEXTS,
    MakeSink,
    StatusSinkBase,
    lasting_only,
    make_record,
)

_WRITERS, _WRITES = 3, 4
_PATIENCE = 60.0


class StatusSinkSuite(StatusSinkBase):
    """What every status sink must keep, wherever it writes."""

    def test_an_empty_slot_holds_nothing(self, sink: StatusSink[Any]) -> None:
        """None, and no error: a slot is empty before its first worker."""
        assert sink.read(SLOT) is None
        assert sink.records() == []
        sink.remove(SLOT, "nobody")

    @pytest.mark.parametrize("text", sorted(TEXTS))
    def test_a_record_goes_in_and_out_whole(self, sink: StatusSink[Any], text: str) -> None:
        """Every field, and whatever letters a message is made of."""
        record = make_record(message=TEXTS[text])
        tag = sink.write(record, "")
        assert tag, "the tag of what a slot holds is not empty: that means nothing"
        assert sink.read(SLOT) == Stored(record=record, tag=tag)
        assert sink.records() == [Stored(record=record, tag=tag)]

    @pytest.mark.parametrize("phase", list(Phase))
    def test_each_phase_can_be_told(self, sink: StatusSink[Any], phase: Phase) -> None:
        """A sink writes what it is given, and judges nothing."""
        sink.write(record := make_record(phase), "")
        assert _held(sink).record == record

    def test_the_next_write_names_what_it_has_seen(self, sink: StatusSink[Any]) -> None:
        """A worker's life, write by write; each takes the tag of the one before."""
        tag, tags = "", []
        for version, phase in enumerate((Phase.STARTING, Phase.LOADING, Phase.READY, Phase.FAILED), start=1):
            tag = sink.write(make_record(phase, version=version), tag)
            tags.append(tag)
            assert (_held(sink).record.version, _held(sink).tag) == (version, tag)
        assert len(set(tags)) == len(tags), "another content has another tag"
        assert len(sink.records()) == 1

    def test_a_write_over_what_was_not_seen_is_refused(self, sink: StatusSink[Any]) -> None:
        """COMPARE-AND-SET: the conflict tells what is held, and nothing was written."""
        old = sink.write(make_record(version=1), "")
        tag = sink.write(make_record(version=2), old)
        for seen in ("", old):
            with pytest.raises(StatusConflict) as caught:
                sink.write(make_record(life="b", version=9), seen)
            assert caught.value.held == Stored(record=make_record(version=2), tag=tag)
        assert _held(sink) == Stored(record=make_record(version=2), tag=tag)

    def test_a_conflict_over_an_empty_slot_tells_that_it_is_empty(self, sink: StatusSink[Any]) -> None:
        """What was seen is gone: the slot is not filled again by somebody who does not know."""
        tag = sink.write(make_record(), "")
        sink.remove(SLOT, make_record().status.incarnation.id)
        with pytest.raises(StatusConflict) as caught:
            sink.write(make_record(version=2), tag)
        assert caught.value.held is None
        assert sink.read(SLOT) is None

    def test_only_the_incarnation_that_is_named_is_removed(self, sink: StatusSink[Any]) -> None:
        """T7: what is said late of an old life cannot touch its successor."""
        sink.write(make_record(life="b"), sink.write(make_record(life="a"), ""))
        sink.remove(SLOT, make_record(life="a").status.incarnation.id)
        assert _held(sink).record == make_record(life="b")
        sink.remove(SLOT, make_record(life="b").status.incarnation.id)
        assert sink.read(SLOT) is None
        sink.remove(SLOT, make_record(life="b").status.incarnation.id)
        sink.write(make_record(life="c"), "")
        assert _held(sink).record == make_record(life="c")

    def test_slots_are_kept_apart(self, sink: StatusSink[Any]) -> None:
        """Names that are alike, and devices whose names need quoting; ``records`` has all that are held."""
        for slot in SLOTS:
            sink.write(make_record(slot=slot, life=str(slot.group % 10)), "")
        for slot in SLOTS:
            assert _held(sink, slot).record == make_record(slot=slot, life=str(slot.group % 10))
        sink.remove(SLOTS[1], make_record(life="0").status.incarnation.id)
        held = sorted(stored.record.status.slot for stored in sink.records())
        assert held == sorted((SLOTS[0], *SLOTS[2:]))

    def test_it_closes_whatever_was_before(self, make: MakeSink) -> None:
        """Without a call, and after some."""
        make().close()
        used = make()
        used.write(make_record(), "")
        used.close()

    @lasting_only
    def test_another_sink_sees_what_was_written(self, make: MakeSink) -> None:
        """Statuses outlive the object that wrote them, and its tags are those of the store."""
        one, two = make(), make()
        tag = one.write(make_record(version=1), "")
        assert two.read(SLOT) == Stored(record=make_record(version=1), tag=tag)
        two.write(make_record(version=2), tag)
        with pytest.raises(StatusConflict):
            one.write(make_record(version=3), tag)
        assert _held(one).record == make_record(version=2)

    @lasting_only
    def test_of_writers_at_one_time_each_write_counts_once(self, make: MakeSink) -> None:
        """COMPARE-AND-SET in one step: several count up one number, and none of them is lost."""
        errors: list[BaseException] = []
        checked = threading.Event()

        def count(sink: StatusSink[Any], written: threading.Event) -> None:
            try:
                for _ in range(_WRITES):
                    _count_one(sink)
            except BaseException as error:
                errors.append(error)
            finally:
                written.set()
                checked.wait(_PATIENCE)
                sink.close()  # here, since a sink is called by one thread alone

        writers = [(make(), threading.Event()) for _ in range(_WRITERS)]
        threads = [threading.Thread(target=count, args=writer) for writer in writers]
        for thread in threads:
            thread.start()
        try:
            assert all(written.wait(_PATIENCE) for _, written in writers), "a write has not come back within a minute"
            assert errors == []
            assert _held(make()).record.version == _WRITERS * _WRITES
        finally:
            checked.set()
            for thread in threads:
                thread.join(_PATIENCE)


def _held(sink: StatusSink[Any], slot: Slot = SLOT) -> Stored:
    held = sink.read(slot)
    assert held is not None, f"{slot.name} holds nothing"
    return held


def _count_one(sink: StatusSink[Any]) -> None:
    held = sink.read(SLOT)
    while True:
        version = held.record.version if held is not None else 0
        try:
            sink.write(make_record(version=version + 1), held.tag if held is not None else "")
        except StatusConflict as conflict:
            held = conflict.held
        else:
            return
