"""Registers the scheduler ``slo``."""

from __future__ import annotations

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import SchedulerCapabilities, SchedulerPlugin
from enginebay_slo.policy import EarliestDueFirst, SloOptions


@hookimpl
def enginebay_register_schedulers() -> list[SchedulerPlugin[SloOptions]]:
    """Offer ``slo``."""
    return [
        SchedulerPlugin(
            name="slo",
            options=SloOptions,
            summary="Whoever is due first goes first.",
            factory=EarliestDueFirst,
            capabilities=SchedulerCapabilities(deterministic_order=True),
        )
    ]
