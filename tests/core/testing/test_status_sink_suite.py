"""The status sinks' suite catches broken sinks: each fault by the test that is there for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec import structs

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import (
    Kind,
    NoOptions,
    StatusConflict,
    StatusSink,
    StatusSinkContext,
    StatusSinkPlugin,
    Stored,
)
from enginebay.messages import Slot, StatusRecord
from enginebay.plugins import PluginHost
from enginebay.testing import StatusSinkSuite, _status_sink_base
from enginebay.testing._offer import offer
from enginebay.testing._status_sink_base import TEXTS

MODULE = "support_broken_sinks"


class Sound(StatusSink[NoOptions]):
    """Keeps records outside of itself, as it should; the tests break one thing each."""

    held: ClassVar[dict[str, Stored]] = {}
    lock: ClassVar[threading.RLock] = threading.RLock()
    numbers: ClassVar[list[int]] = []

    def read(self, slot: Slot) -> Stored | None:
        return self.held.get(self.name_of(slot))

    def write(self, record: StatusRecord, seen: str) -> str:
        with self.lock:
            if not self.matches(held := self.read(record.status.slot), seen):
                raise StatusConflict(self.told(held))
            return self.put(record)

    def remove(self, slot: Slot, incarnation_id: str) -> None:
        held = self.read(slot)
        if held is not None and held.record.status.incarnation.id == incarnation_id:
            del self.held[self.name_of(slot)]

    def records(self) -> list[Stored]:
        return list(self.held.values())

    def name_of(self, slot: Slot) -> str:
        return slot.name

    def matches(self, held: Stored | None, seen: str) -> bool:
        return (held.tag if held is not None else "") == seen

    def told(self, held: Stored | None) -> Stored | None:
        return held

    def put(self, record: StatusRecord) -> str:
        self.numbers.append(1)
        tag = f"tag {len(self.numbers)}"
        self.held[self.name_of(record.status.slot)] = Stored(record=record, tag=tag)
        return tag


class WritesAlways(Sound):
    def matches(self, held: Stored | None, seen: str) -> bool:
        return True


class FillsWhatIsGone(Sound):
    def matches(self, held: Stored | None, seen: str) -> bool:
        return held is None or super().matches(held, seen)


class TellsNothing(Sound):
    def told(self, held: Stored | None) -> Stored | None:
        return None


class WritesAndRefuses(Sound):
    def write(self, record: StatusRecord, seen: str) -> str:
        if not self.matches(held := self.read(record.status.slot), seen):
            self.put(record)
            raise StatusConflict(held)
        return self.put(record)


class KeepsOneTag(Sound):
    def put(self, record: StatusRecord) -> str:
        self.held[self.name_of(record.status.slot)] = Stored(record=record, tag="tag")
        return "tag"


class AnswersAnotherTag(Sound):
    def put(self, record: StatusRecord) -> str:
        return f"{super().put(record)}'"


class Ascii(Sound):
    def put(self, record: StatusRecord) -> str:
        message = record.status.message.encode("ascii", "replace").decode()
        return super().put(structs.replace(record, status=structs.replace(record.status, message=message)))


class Short(Sound):
    def put(self, record: StatusRecord) -> str:
        message = record.status.message[:255]
        return super().put(structs.replace(record, status=structs.replace(record.status, message=message)))


class OwnConditionsOnly(Sound):
    def put(self, record: StatusRecord) -> str:
        conditions = tuple(one for one in record.status.conditions if one.owner == "enginebay")
        return super().put(structs.replace(record, status=structs.replace(record.status, conditions=conditions)))


class RemovesAny(Sound):
    def remove(self, slot: Slot, incarnation_id: str) -> None:
        self.held.pop(self.name_of(slot), None)


class RemovesNone(Sound):
    def remove(self, slot: Slot, incarnation_id: str) -> None:
        pass


class RemovesStrictly(Sound):
    def remove(self, slot: Slot, incarnation_id: str) -> None:
        del self.held[self.name_of(slot)]


class MixesSlots(Sound):
    def name_of(self, slot: Slot) -> str:
        return f"{slot.group}{slot.rank}"


class ForgetsSlots(Sound):
    def records(self) -> list[Stored]:
        return super().records()[:1]


class RaisesWhenEmpty(Sound):
    def read(self, slot: Slot) -> Stored | None:
        return self.held[self.name_of(slot)]


class DropsEnds(Sound):
    def put(self, record: StatusRecord) -> str:
        tag = super().put(record)
        if record.status.phase.terminal:
            self.held.clear()
        return tag


class KeepsToItself(Sound):
    def __init__(self, context: StatusSinkContext[NoOptions]) -> None:
        super().__init__(context)
        self.held = {}  # type: ignore[misc]  # that is the fault


class LooksAndThenWrites(Sound):
    def write(self, record: StatusRecord, seen: str) -> str:
        matches, held = self.matches(held := self.read(record.status.slot), seen), held
        if not matches:
            raise StatusConflict(held)
        BETWEEN.wait(0.01)  # others have their turn, as a server's clients have
        return self.put(record)


class ClosesBadly(Sound):
    def close(self) -> None:
        raise OSError("it was closed already")


BETWEEN = threading.Event()
"""Never set: what waits for it lets other threads run."""
FAULTS = {
    WritesAlways: "test_a_write_over_what_was_not_seen_is_refused",
    FillsWhatIsGone: "test_a_conflict_over_an_empty_slot_tells_that_it_is_empty",
    TellsNothing: "test_a_write_over_what_was_not_seen_is_refused",
    WritesAndRefuses: "test_a_write_over_what_was_not_seen_is_refused",
    KeepsOneTag: "test_the_next_write_names_what_it_has_seen",
    AnswersAnotherTag: "test_a_record_goes_in_and_out_whole",
    Ascii: "test_a_record_goes_in_and_out_whole",
    Short: "test_a_record_goes_in_and_out_whole",
    OwnConditionsOnly: "test_a_record_goes_in_and_out_whole",
    RemovesAny: "test_only_the_incarnation_that_is_named_is_removed",
    RemovesNone: "test_only_the_incarnation_that_is_named_is_removed",
    RemovesStrictly: "test_an_empty_slot_holds_nothing",
    MixesSlots: "test_slots_are_kept_apart",
    ForgetsSlots: "test_slots_are_kept_apart",
    RaisesWhenEmpty: "test_an_empty_slot_holds_nothing",
    DropsEnds: "test_the_next_write_names_what_it_has_seen",
    KeepsToItself: "test_another_sink_sees_what_was_written",
    LooksAndThenWrites: "test_of_writers_at_one_time_each_write_counts_once",
    ClosesBadly: "test_it_closes_whatever_was_before",
}
_made: list[type[Sound]] = []


@hookimpl
def enginebay_register_status_sinks() -> list[StatusSinkPlugin[NoOptions]]:
    """The one that is tested."""
    return [StatusSinkPlugin(name="broken", factory=lambda context: _made[-1](context))]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginHost]:
    """This module as an installed plugin."""
    import sys

    monkeypatch.setitem(sys.modules, MODULE, sys.modules[__name__])
    offer(tmp_path, monkeypatch, Kind.STATUS_SINK, "broken", MODULE)
    yield PluginHost()
    Sound.held.clear()
    _made.clear()


def run(name: str, sink: type[Sound], host: PluginHost, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test of the suite on that sink, with its fixtures, for each of its parameters."""
    suite = type("Suite", (StatusSinkSuite,), {"name": "broken"})()
    values: dict[str, list[Any]] = {"text": sorted(TEXTS)}
    _made.append(sink)
    method = getattr(suite, name)
    code = method.__func__.__code__
    asked = code.co_varnames[1 : code.co_argcount]
    for value in next((values[one] for one in asked if one in values), [None]):
        Sound.held.clear()
        making = _status_sink_base.StatusSinkBase.make.__wrapped__(suite, host, {}, folder, monkeypatch)  # type: ignore[attr-defined]  # the fixture's function
        make = next(making)
        given = {"make": make, "sink": make(), "text": value}
        try:
            method(**{one: given[one] for one in asked})
        finally:
            next(making, None)


@pytest.mark.parametrize("sink", FAULTS, ids=lambda sink: sink.__name__)
def test_each_fault_is_found_by_its_test(
    sink: type[Sound], host: PluginHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(FAULTS[sink], Sound, host, tmp_path, monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, StatusConflict, KeyError, OSError)):
        run(FAULTS[sink], sink, host, tmp_path, monkeypatch)


def test_a_sink_that_keeps_records_in_itself_has_no_tests_of_lasting_ones() -> None:
    class Inside(StatusSinkSuite):
        lasting = False

    gone = {name for name in dir(StatusSinkSuite) if name.startswith("test_") and getattr(Inside, name) is None}
    assert gone == {
        "test_another_sink_sees_what_was_written",
        "test_of_writers_at_one_time_each_write_counts_once",
    }
