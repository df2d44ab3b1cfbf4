"""Offers the executor ``ray``; light: Ray is imported when an engine starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import ExecutorCapabilities, ExecutorContext, ExecutorPlugin
from enginebay_ray.options import RayOptions

if TYPE_CHECKING:
    from enginebay_ray.executor import RayExecutor


def _make(context: ExecutorContext[RayOptions]) -> RayExecutor:
    from enginebay_ray.executor import RayExecutor

    return RayExecutor(context)


@hookimpl
def enginebay_register_executors() -> list[ExecutorPlugin[RayOptions]]:
    """The executor ``ray``."""
    return [
        ExecutorPlugin(
            name="ray",
            summary="Workers that Ray places on one machine or on a cluster, as actors; calls go past Ray.",
            options=RayOptions,
            factory=_make,
            capabilities=ExecutorCapabilities(max_in_flight=2, multi_node=True, maps_devices=True, restartable=True),
            requires_modules={"ray": "enginebay[ray]"},
        )
    ]
