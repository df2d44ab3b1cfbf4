"""Offers the executor ``external_launcher``; light: what runs is imported by the factory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import ExecutorCapabilities, ExecutorContext, ExecutorPlugin, NoOptions
from enginebay_external_launcher.environment import own_rank

if TYPE_CHECKING:
    from enginebay_external_launcher.executor import ExternalLauncherExecutor


def _make(context: ExecutorContext[NoOptions]) -> ExternalLauncherExecutor:
    from enginebay_external_launcher.executor import ExternalLauncherExecutor

    return ExternalLauncherExecutor(context)


@hookimpl
def enginebay_register_executors() -> list[ExecutorPlugin[NoOptions]]:
    """The executor ``external_launcher``."""
    return [
        ExecutorPlugin(
            name="external_launcher",
            summary="One engine per rank, in the processes that torchrun or another launcher has started.",
            options=NoOptions,
            factory=_make,
            own_rank=own_rank,
            capabilities=ExecutorCapabilities(
                max_in_flight=2, multi_node=True, maps_devices=True, every_rank_schedules=True, attaches=True
            ),
        )
    ]
