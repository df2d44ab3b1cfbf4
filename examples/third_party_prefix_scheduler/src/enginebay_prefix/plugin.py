"""Registers the scheduler ``prefix``."""

from __future__ import annotations

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import SchedulerCapabilities, SchedulerPlugin
from enginebay_prefix.policy import CachedFirst, PrefixOptions


@hookimpl
def enginebay_register_schedulers() -> list[SchedulerPlugin[PrefixOptions]]:
    """Offer ``prefix``."""
    return [
        SchedulerPlugin(
            name="prefix",
            options=PrefixOptions,
            summary="Whose beginning is in the KV cache goes first.",
            factory=CachedFirst,
            capabilities=SchedulerCapabilities(deterministic_order=True),
        )
    ]
