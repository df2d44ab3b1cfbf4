"""The options of the executor ``ray``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from enginebay.interfaces import Options

__all__ = ["RayOptions"]


class RayOptions(Options):
    """``[executor.options]`` with ``use = "ray"``."""

    address: Annotated[
        str | None,
        Field(description='The cluster: "auto" or "host:port"; unset: one of its own on this machine, until it stops.'),
    ] = None
    cpus_per_worker: Annotated[float, Field(ge=0, description="Ray's CPUs to set aside for each worker.")] = 1.0
    gpus_per_worker: Annotated[
        int | None, Field(ge=0, description="Ray's GPUs for each worker; unset: 1 where the cluster has any, else 0.")
    ] = None
    resources: Annotated[
        dict[str, float],
        Field(default_factory=dict, description="Other resources of Ray to set aside for each worker, by name."),
    ]
    strategy: Annotated[
        Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"],
        Field(description="How Ray spreads the workers over nodes."),
    ] = "PACK"
    placement_group: Annotated[
        str | None, Field(description="The name of a placement group that exists already; it is left as it is.")
    ] = None
    bundle_indices: Annotated[
        tuple[int, ...] | None,
        Field(description="The bundle of each rank in the placement group; unset: node by node, this one first."),
    ] = None
    env: Annotated[
        tuple[str, ...],
        Field(description="Names of more environment variables that the workers get from the engine's."),
    ] = ()
    transport: Annotated[
        Literal["auto", "tcp"],
        Field(description='"tcp": also to workers on this host, where "auto" takes a Unix socket.'),
    ] = "auto"
