"""Registers the scheduler ``sjf``."""

from __future__ import annotations

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import SchedulerCapabilities, SchedulerPlugin
from enginebay_sjf.policy import ShortestJobFirst, SjfOptions


@hookimpl
def enginebay_register_schedulers() -> list[SchedulerPlugin[SjfOptions]]:
    """Offer ``sjf``."""
    return [
        SchedulerPlugin(
            name="sjf",
            options=SjfOptions,
            summary="Shortest job first, with ageing.",
            factory=ShortestJobFirst,
            capabilities=SchedulerCapabilities(deterministic_order=True),
        )
    ]
