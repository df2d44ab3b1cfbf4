"""Whoever is due first goes first, and takes the place of a running request that has time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from enginebay.interfaces import Options, Policy, RequestView, SchedulerContext

_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SloOptions(Options):
    """What stands under ``[scheduler.options]``."""

    default: Annotated[_Seconds, Field(description="Seconds that a request without a deadline has from arrival.")] = 60
    tenants: dict[str, _Seconds] = Field(
        default_factory=dict, description="Seconds that each request of a tenant has from arrival, if fewer are left."
    )
    preempt: Annotated[bool, Field(description="Whether one that is due sooner takes the place of a running one.")] = (
        True
    )


class EarliestDueFirst(Policy[SloOptions]):
    """Earliest deadline first. When a request is due is known when it comes, so a fixed key is enough, and no clock is
    read: whoever waits is due sooner than those that come later, and so has its turn.
    """

    may_overtake_preempted = True  # or a request that gave way would stand before the one for which it did

    def __init__(self, context: SchedulerContext[SloOptions]) -> None:
        super().__init__(context)
        self.preempts_running = context.options.preempt

    def key(self, request: RequestView) -> tuple[float, int]:
        """When it is due, then arrival."""
        options = self.context.options
        due = request.arrival + options.tenants.get(request.tenant, options.default)
        return (due if request.deadline is None else min(due, request.deadline), request.arrival_number)

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        """Whoever is due last, unless that is sooner than the one that needs the place."""
        due = [self.key(request) for request in candidates]
        last = max(due)
        return due.index(last) if last >= self.key(needed) else None
