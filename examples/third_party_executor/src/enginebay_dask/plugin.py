"""Offers the executor ``dask``; light: Dask is imported when the executor starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import ExecutorCapabilities, ExecutorContext, ExecutorPlugin, Options

if TYPE_CHECKING:
    from enginebay_dask.executor import DaskExecutor


class DaskOptions(Options):
    """Which Dask, and where the engine listens for the workers that it places."""

    scheduler: Annotated[str, Field(description="Address of a running scheduler; empty: a cluster of our own.")] = ""
    listen: Annotated[str, Field(description="Address of this host that Dask's workers can reach.")] = "127.0.0.1"


def _make(context: ExecutorContext[DaskOptions]) -> DaskExecutor:
    from enginebay_dask.executor import DaskExecutor

    return DaskExecutor(context)


@hookimpl
def enginebay_register_executors() -> list[ExecutorPlugin[DaskOptions]]:
    """The executor ``dask``."""
    return [
        ExecutorPlugin(
            name="dask",
            summary="Workers as long-running tasks of Dask.",
            options=DaskOptions,
            factory=_make,
            capabilities=ExecutorCapabilities(max_in_flight=2, multi_node=True, restartable=True),
            requires_modules={"distributed": "enginebay-dask"},
        )
    ]
