"""A sink that keeps records in this process: for tests, and for programs that look at them."""

from __future__ import annotations

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import NoOptions, StatusConflict, StatusSink, StatusSinkContext, StatusSinkPlugin, Stored
from enginebay.messages import Slot, StatusRecord

__all__ = ["MemorySink", "enginebay_register_status_sinks"]


class MemorySink(StatusSink[NoOptions]):
    """See the module. ``history`` has what was written, in order."""

    def __init__(self, context: StatusSinkContext[NoOptions]) -> None:
        super().__init__(context)
        self._held: dict[Slot, Stored] = {}
        self.history: list[StatusRecord] = []

    def read(self, slot: Slot) -> Stored | None:
        """See ``StatusSink``."""
        return self._held.get(slot)

    def write(self, record: StatusRecord, seen: str) -> str:
        """See ``StatusSink``."""
        held = self._held.get(record.status.slot)
        if (held.tag if held else "") != seen:
            raise StatusConflict(held)
        self.history.append(record)
        tag = str(len(self.history))
        self._held[record.status.slot] = Stored(record=record, tag=tag)
        return tag

    def remove(self, slot: Slot, incarnation_id: str) -> None:
        """See ``StatusSink``."""
        held = self._held.get(slot)
        if held is not None and held.record.status.incarnation.id == incarnation_id:
            del self._held[slot]

    def records(self) -> list[Stored]:
        """See ``StatusSink``."""
        return list(self._held.values())


@hookimpl
def enginebay_register_status_sinks() -> list[StatusSinkPlugin[NoOptions]]:
    """Offer ``memory``."""
    return [
        StatusSinkPlugin(
            name="memory",
            factory=MemorySink,
            summary="Kept in the engine's process, and nowhere else.",
            lasting=False,
        )
    ]
