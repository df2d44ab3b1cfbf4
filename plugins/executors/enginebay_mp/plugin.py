"""Offers the executor ``mp``; light: what runs is imported by the factory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import ExecutorCapabilities, ExecutorContext, ExecutorPlugin
from enginebay_mp.options import MpOptions

if TYPE_CHECKING:
    from enginebay_mp.executor import MpExecutor


def _make(context: ExecutorContext[MpOptions]) -> MpExecutor:
    from enginebay_mp.executor import MpExecutor

    return MpExecutor(context)


@hookimpl
def enginebay_register_executors() -> list[ExecutorPlugin[MpOptions]]:
    """The executor ``mp``."""
    return [
        ExecutorPlugin(
            name="mp",
            summary="One process for each worker on this machine; a worker that dies is started again.",
            options=MpOptions,
            factory=_make,
            capabilities=ExecutorCapabilities(max_in_flight=8, restartable=True),
        )
    ]
