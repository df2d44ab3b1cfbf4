"""Registers the scheduler ``shortest``."""

from __future__ import annotations

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import SchedulerCapabilities, SchedulerPlugin
from enginebay_shortest.policy import Shortest, ShortestOptions


@hookimpl
def enginebay_register_schedulers() -> list[SchedulerPlugin[ShortestOptions]]:
    """Offer ``shortest``."""
    return [
        SchedulerPlugin(
            name="shortest",
            options=ShortestOptions,
            summary="Shortest prompt first, with ageing.",
            factory=Shortest,
            capabilities=SchedulerCapabilities(deterministic_order=True),
        )
    ]
