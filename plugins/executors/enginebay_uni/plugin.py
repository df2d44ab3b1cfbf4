"""Offers the executor ``uni``; light: what runs is imported by the factory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import ExecutorCapabilities, ExecutorContext, ExecutorPlugin, NoOptions

if TYPE_CHECKING:
    from enginebay_uni.executor import UniExecutor


def _make(context: ExecutorContext[NoOptions]) -> UniExecutor:
    from enginebay_uni.executor import UniExecutor

    return UniExecutor(context)


@hookimpl
def enginebay_register_executors() -> list[ExecutorPlugin[NoOptions]]:
    """The executor ``uni``."""
    return [
        ExecutorPlugin(
            name="uni",
            summary="One worker in a thread of the engine's process; for one device, and for the first try.",
            options=NoOptions,
            factory=_make,
            capabilities=ExecutorCapabilities(max_in_flight=2, restartable=True, max_world_size=1),
        )
    ]
