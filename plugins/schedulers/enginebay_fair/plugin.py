"""Registers the scheduler ``fair``."""

from __future__ import annotations

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import SchedulerCapabilities, SchedulerPlugin
from enginebay_fair.policy import FairOptions, FairShares

FAIR = SchedulerPlugin(
    name="fair",
    options=FairOptions,
    summary="The tenant that was served least goes first, by weight.",
    factory=FairShares,
    capabilities=SchedulerCapabilities(deterministic_order=True),
)


@hookimpl
def enginebay_register_schedulers() -> list[SchedulerPlugin[FairOptions]]:
    """Offer ``fair``."""
    return [FAIR]
