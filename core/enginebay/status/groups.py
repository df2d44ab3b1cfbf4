"""A group of workers as one: ready when every rank is, in the same generation. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from enginebay.messages import Phase, Slot, WorkerStatus

__all__ = ["GroupStatus", "group_status"]

_SERVING: Final = frozenset({Phase.READY, Phase.DEGRADED})
"""A worker that is late is well as long as its step may take."""


@dataclass(frozen=True, kw_only=True)
class GroupStatus:
    """``ready``: steps can be computed by it. ``waiting_for``: the slots that keep it from that, in order, each with
    what its newest worker is, None: none is known there. ``stands``: one is known somewhere."""

    ready: bool
    stands: bool
    waiting_for: tuple[tuple[Slot, WorkerStatus | None], ...]

    @property
    def words(self) -> str:
        """Whom it waits for, and how these stand; "" when it is ready."""
        if not self.stands:
            return "no worker stands"
        return "; ".join(
            f"{slot.name} has no worker"
            if status is None
            else f"{slot.name} is of an earlier generation"
            if status.phase in _SERVING
            else f"{slot.name} is {status.phase}"
            for slot, status in self.waiting_for
        )


def group_status(slots: Sequence[Slot], statuses: Iterable[WorkerStatus]) -> GroupStatus:
    """Of the group that has these slots, by the newest generation that any of them has."""
    newest: dict[Slot, WorkerStatus] = {}
    for one in statuses:
        held = newest.get(one.slot)
        if one.slot in slots and (held is None or one.incarnation.order >= held.incarnation.order):
            newest[one.slot] = one
    order = max((one.incarnation.order for one in newest.values()), default=(0, 0))
    ready = {slot for slot, one in newest.items() if one.incarnation.order == order and one.phase in _SERVING}
    waiting = tuple((slot, newest.get(slot)) for slot in slots if slot not in ready)
    return GroupStatus(ready=bool(newest) and not waiting, stands=bool(newest), waiting_for=waiting)
