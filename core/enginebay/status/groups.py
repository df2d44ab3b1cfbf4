"""A group of workers as one: ready when every rank is, in the same generation. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from enginebay.messages import Phase, WorkerStatus

__all__ = ["GroupStatus", "group_status"]


@dataclass(frozen=True, kw_only=True)
class GroupStatus:
    """``ready``: requests may be sent to it. ``waiting_for``: the ranks that are not ready, in order."""

    group: int
    generation: int
    ready: bool
    waiting_for: tuple[int, ...]


def group_status(group: int, size: int, statuses: Iterable[WorkerStatus]) -> GroupStatus:
    """Of the ranks 0 to ``size`` - 1, by the statuses of the newest generation that any of them has."""
    own = [one for one in statuses if one.slot.group == group]
    newest = max((one.incarnation.order for one in own), default=(0, 0))
    ready = {one.slot.rank for one in own if one.incarnation.order == newest and one.phase is Phase.READY}
    missing = tuple(rank for rank in range(size) if rank not in ready)
    return GroupStatus(group=group, generation=newest[1], ready=not missing, waiting_for=missing)
