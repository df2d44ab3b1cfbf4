"""The status sink of the simulation: it is down when the plan says so, and holds what it is told against the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from enginebay.interfaces import NoOptions, StatusSinkContext, Stored
from enginebay.messages import Incarnation, Phase, Slot, StatusRecord, Truth, WorkerStatus
from enginebay.status.sinks.memory import MemorySink
from simulation.workers import Violation

__all__ = ["SimSink"]

_CONTEXT: Final = StatusSinkContext(options=NoOptions(), engine="simulated", wall=lambda: 0.0)
_LATER: Final = Incarnation(id="of a later run", epoch=1)
_SOON: Final = 0.4
"""Seconds in which a sink that has failed is left alone: the first back-off, with all of its jitter taken off."""
_ENDING: Final = {Phase.TERMINATING: 1, Phase.RECLAIMING: 2, Phase.FAILED: 3, Phase.SUCCEEDED: 3}


class SimSink(MemorySink):
    """One run's. ``found`` are the violations: what is raised here counts as a sink that is down.

    It raises at the calls whose numbers are in ``faults``, from 1 on. At the call ``usurped`` it turns out to hold a
    later life of the slot, which an engine of another run has written: that is ``usurper`` from then on.
    """

    def __init__(self, now: Callable[[], float], faults: Iterable[int], usurped: int) -> None:
        super().__init__(_CONTEXT)
        self._now, self._faults, self._usurped = now, frozenset(faults), usurped
        self._count, self._failed_at = 0, float("-inf")
        self._told: dict[str, StatusRecord] = {}
        self.usurper: Stored | None = None
        self.found: list[Violation] = []

    def read(self, slot: Slot) -> Stored | None:
        self._called(slot)
        return super().read(slot)

    def write(self, record: StatusRecord, seen: str) -> str:
        self._called(record.status.slot)
        tag = super().write(record, seen)
        key = record.status.incarnation.id
        self._look(record, self._told.get(key))
        self._told[key] = record
        return tag

    def remove(self, slot: Slot, incarnation_id: str) -> None:
        self._called(slot)
        told = self._told.get(incarnation_id)
        if told is None or not told.finished or not told.status.phase.terminal:
            self.found.append(Violation(f"{incarnation_id} is removed, and the last that was told of it is {told}"))
        super().remove(slot, incarnation_id)

    def check_end(self, last: str) -> None:
        """All has been told and removed; ``last`` is the incarnation that came last."""
        held, usurper = self.records(), self.usurper
        if held != ([] if usurper is None else [usurper]):
            raise Violation(f"the sink holds {held}, and another run's is {usurper}")
        told = None if usurper else self.history[-1].status
        if told is not None and (told.incarnation.id != last or not told.phase.terminal):
            raise Violation(f"the last that the sink was told is {told}")

    def _called(self, slot: Slot) -> None:
        self._count += 1
        if self._now() < self._failed_at + _SOON:
            self.found.append(Violation(f"the sink failed at {self._failed_at}, and is called at {self._now()}"))
        if self._count == self._usurped:
            record = StatusRecord(status=WorkerStatus(slot=slot, incarnation=_LATER, phase=Phase.READY), version=1)
            self.usurper = self._held[slot] = Stored(record=record, tag="another's")
        if self._count in self._faults:
            self._failed_at = self._now()
            raise ConnectionError("the sink is down")

    def _look(self, record: StatusRecord, before: StatusRecord | None) -> None:
        status = record.status
        truths = {one.kind: one.truth for one in status.conditions}
        wrong = ""
        if (truths.get("Ready") is Truth.TRUE) is not (status.phase is Phase.READY):
            wrong = "its readiness is not its phase's"
        elif status.phase.terminal and truths.get("ProcessAlive") is not Truth.FALSE:
            wrong = "an end is told of a process that may still run"
        elif status.phase is Phase.SUCCEEDED and (status.exit_code or status.signal is not None):
            wrong = "its end was another"
        elif before is not None and record.version <= before.version:
            wrong = f"its version was {before.version}"
        elif before is not None and before.finished and not record.finished:
            wrong = "it was finished"
        elif before is not None and _goes_back(before.status.phase, status.phase):
            wrong = f"it was {before.status.phase}"
        if wrong:
            self.found.append(Violation(f"{record} is told, and {wrong}"))


def _goes_back(old: Phase, new: Phase) -> bool:
    """Whether a life that was ending does so no more, or has ended otherwise."""
    return _ENDING.get(new, 0) < _ENDING.get(old, 0) or (old.terminal and new is not old)
