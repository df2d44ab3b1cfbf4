"""Registers the scheduler ``priority``."""

from __future__ import annotations

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import NoOptions, SchedulerCapabilities, SchedulerPlugin
from enginebay_priority.policy import MostUrgentFirst

PRIORITY = SchedulerPlugin(
    name="priority",
    options=NoOptions,
    summary="Most urgent first (the smallest priority), by preemption where need be.",
    factory=MostUrgentFirst,
    capabilities=SchedulerCapabilities(deterministic_order=True),
)


@hookimpl
def enginebay_register_schedulers() -> list[SchedulerPlugin[NoOptions]]:
    """Offer ``priority``."""
    return [PRIORITY]
