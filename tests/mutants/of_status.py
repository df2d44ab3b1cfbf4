"""Mutants of statuses: which follow each other, what of them is kept, and what a sink is told and when."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from enginebay.messages import Phase
from enginebay.status.book import StatusBook
from enginebay.status.sinks.memory import MemorySink
from enginebay.status.sync import SinkSync
from mutants.patching import Patch

__all__ = ["MUTANTS"]


def end_of_a_worker_is_overwritten(patch: Patch) -> None:
    """Any phase may follow any other."""
    import enginebay.status.book as module

    patch(module, "may_follow", lambda old, new: True)


def versions_are_not_raised(patch: Patch) -> None:
    """A change of a status has the number of the one before it."""

    def apply(self: StatusBook, status: Any, **how: Any) -> Any:
        before = self._entries.get(status.incarnation.id)
        accepted = original(self, status, **how)
        if accepted and before is not None:
            entry = self._entries[status.incarnation.id]
            entry.record = replace(entry.record, version=before.record.version)
        return accepted

    original = patch(StatusBook, "_apply", apply)


def finished_is_no_latch(patch: Patch) -> None:
    """What is told late of a worker of which nothing is left brings its record back to life."""

    def apply(self: StatusBook, status: Any, *, force: bool, finished: bool) -> Any:
        accepted = original(self, status, force=force, finished=finished)
        entry = self._entries.get(status.incarnation.id)
        if accepted and entry is not None:
            entry.record = replace(entry.record, finished=finished)
        return accepted

    original = patch(StatusBook, "_apply", apply)


def later_life_is_written_over(patch: Patch) -> None:
    """Whoever stands in the sink is written over, be it a worker of a later run."""

    def resolve(self: SinkSync, local: Any, held: Any, seen: Any) -> bool:
        seen.tag, seen.record, seen.silent = "" if held is None else held.tag, None, False
        return True

    patch(SinkSync, "_resolve", resolve)


def later_life_is_removed(patch: Patch) -> None:
    """What a slot holds is removed, whoever it is."""
    patch(MemorySink, "remove", lambda self, slot, incarnation_id: self._held.pop(slot, None))


def end_that_may_not_be_one_is_told(patch: Patch) -> None:
    """A worker is told to have ended while its process may still run."""
    import enginebay.status._merge as merge
    import enginebay.status.sync as sync

    for module in (merge, sync):
        patch(module, "held_back", lambda local: False)


def held_back_end_counts_as_told(patch: Patch) -> None:
    """An end that was kept from a sink needs no further word to it."""

    def write(self: SinkSync, entry: Any) -> None:
        original(self, entry)
        seen = self._seen.get(entry.status.incarnation.id)
        if seen is not None and seen.held_back:
            seen.version = 1 << 30

    original = patch(SinkSync, "_write", write)


def failed_writes_are_repeated_at_once(patch: Patch) -> None:
    """A sink that is down is called again without a pause."""

    def failed(self: SinkSync, error: BaseException) -> None:
        original(self, error)
        self._retry_at = float("-inf")

    original = patch(SinkSync, "_failed", failed)


def end_of_a_killed_worker_is_a_success(patch: Patch) -> None:
    """What ended by a signal is told to have succeeded."""

    def end(self: StatusBook, incarnation_id: str, **how: Any) -> bool:
        entry = self._entries.get(incarnation_id)
        if entry is not None and not entry.status.phase.terminal:
            entry.record = replace(entry.record, status=replace(entry.status, phase=Phase.SUCCEEDED))
        return original(self, incarnation_id, **how)

    original = patch(StatusBook, "end", end)


def readiness_outlives_its_phase(patch: Patch) -> None:
    """A worker that was ready stays so in its conditions, whatever becomes of it."""
    import enginebay.status.book as module

    def settled(phase: Phase, conditions: Any, reason: str) -> Any:
        conditions = tuple(conditions)
        return conditions if any(one.kind == "Ready" for one in conditions) else original(phase, conditions, reason)

    original = patch(module, "settled", settled)


MUTANTS = (
    end_of_a_worker_is_overwritten,
    versions_are_not_raised,
    finished_is_no_latch,
    later_life_is_written_over,
    later_life_is_removed,
    end_that_may_not_be_one_is_told,
    held_back_end_counts_as_told,
    failed_writes_are_repeated_at_once,
    end_of_a_killed_worker_is_a_success,
    readiness_outlives_its_phase,
)
