"""A worker's status in one call, a clock that the test turns, and a sink that fails when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from msgspec.structs import replace

from enginebay.interfaces import NoOptions, StatusSinkContext, Stored
from enginebay.messages import Incarnation, Phase, Slot, StatusRecord, WorkerStatus
from enginebay.status import SinkSync, StatusBook
from enginebay.status.sinks.memory import MemorySink

SLOT = Slot(group=0, rank=0)


def status(phase: Phase = Phase.STARTING, *, inc: str = "a", slot: Slot = SLOT, **fields: Any) -> WorkerStatus:
    """Of incarnation ``inc``, whose generation is 0 for "a", 1 for "b", and so on."""
    incarnation = Incarnation(id=inc, generation=ord(inc[0]) - ord("a"))
    return WorkerStatus(slot=slot, incarnation=incarnation, phase=phase, **fields)


class ScriptedSink(MemorySink):
    """Raises ``error`` on every call while it is set. ``calls`` and ``removed`` say what came."""

    def __init__(self) -> None:
        super().__init__(StatusSinkContext(options=NoOptions(), engine="test", wall=lambda: 0.0))
        self.error: BaseException | None = None
        self.calls = 0
        self.removed: list[str] = []

    def read(self, slot: Slot) -> Stored | None:
        self._called()
        return super().read(slot)

    def write(self, record: StatusRecord, seen: str) -> str:
        self._called()
        return super().write(record, seen)

    def remove(self, slot: Slot, incarnation_id: str) -> None:
        self._called()
        self.removed.append(incarnation_id)
        super().remove(slot, incarnation_id)

    def shown(self, slot: Slot = SLOT) -> WorkerStatus:
        """What the slot holds."""
        return self._held[slot].record.status

    def edit(self, change: Callable[[WorkerStatus], WorkerStatus], slot: Slot = SLOT) -> None:
        """Somebody else writes there."""
        held = self._held[slot]
        self._held[slot] = Stored(record=replace(held.record, status=change(held.record.status)), tag=held.tag + "'")

    def _called(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error


class Stand:
    """A book and one sink over a clock that stands still: ``now`` is monotonic, and the time of day is 1,000 later."""

    def __init__(self, **book: Any) -> None:
        self.now = 100.0
        self.signals = 0
        self.latencies: list[tuple[StatusRecord, float]] = []
        self.book = StatusBook(
            now=lambda: self.now,
            wall=lambda: self.now + 1000.0,
            lock=nullcontext(),
            changed=self._changed,
            sinks=("memory",),
            **book,
        )
        self.sink = ScriptedSink()
        self.sync = SinkSync(
            "memory",
            self.sink,
            self.book,
            now=lambda: self.now,
            draw=lambda: 0.0,
            acknowledged=lambda record, waited: self.latencies.append((record, waited)),
        )

    def _changed(self) -> None:
        self.signals += 1

    def tell(self, *statuses: WorkerStatus, full: bool = False) -> int:
        """Set these, let the sink's thread look once, and say how many writes came of it."""
        before = len(self.sink.history)
        for one in statuses:
            self.book.set(one)
        self.sync.tick(full=full)
        return len(self.sink.history) - before
