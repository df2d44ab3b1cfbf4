"""Registers the scheduler ``fcfs``."""

from __future__ import annotations

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import NoOptions, SchedulerCapabilities, SchedulerContext, SchedulerPlugin
from enginebay_fcfs.policy import FirstComeFirstServed


def _make(context: SchedulerContext[NoOptions]) -> FirstComeFirstServed:
    return FirstComeFirstServed(context)


FCFS = SchedulerPlugin(
    name="fcfs",
    options=NoOptions,
    summary="First come, first served.",
    factory=_make,
    capabilities=SchedulerCapabilities(deterministic_order=True),
)


@hookimpl
def enginebay_register_schedulers() -> list[SchedulerPlugin[NoOptions]]:
    """Offer ``fcfs``."""
    return [FCFS]
