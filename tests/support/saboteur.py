"""A worker extension by which one rank finds another model than the others: as on a host whose copy of it is torn."""

from __future__ import annotations

from typing import Annotated

import msgspec
from pydantic import Field

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import Options, WorkerExtensionContext, WorkerExtensionPlugin


class SaboteurOptions(Options):
    """See the module."""

    rank: Annotated[int, Field(description="The rank that finds it.")] = 1
    path: Annotated[str, Field(description="Folder of what it finds.")] = ""


def make(context: WorkerExtensionContext[SaboteurOptions]) -> object:
    """Give that rank's runner the other folder."""
    if context.place.rank == context.options.rank:
        of_runner = context.runner.context
        other = msgspec.structs.replace(of_runner.model, path=context.options.path)
        object.__setattr__(of_runner, "model", other)
    return object()


@hookimpl
def enginebay_register_worker_extensions() -> list[WorkerExtensionPlugin[SaboteurOptions]]:
    """Register ``saboteur``."""
    return [WorkerExtensionPlugin(name="saboteur", options=SaboteurOptions, factory=make, methods=())]
