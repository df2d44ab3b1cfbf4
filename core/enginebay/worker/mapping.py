"""From a worker's place to its device: pure functions, no device touched."""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.errors import CapabilityError
from enginebay.messages import RankPlace, WorldPlan


def device_position(place: RankPlace, world: WorldPlan, *, maps_devices: bool) -> int:
    """Which of the devices that this process may see is the worker's first one, counted from 0.

    Replicas on one node stand one after the other, so a replica's ranks begin after those of the replicas before it:
    ``data_parallel_rank_local`` (unset: ``data_parallel_index``) times tensor times pipeline. Not so when the executor
    gives each worker its own devices (``maps_devices``), or when the replica spans nodes and so has each node alone.
    """
    position = place.local_rank
    if not maps_devices and not spans_nodes(world):
        replica = world.data_parallel_rank_local
        if replica is None:
            replica = world.data_parallel_index
        position += replica * world.tensor_parallel_size * world.pipeline_parallel_size
    return position * world.devices_per_rank


def spans_nodes(world: WorldPlan) -> bool:
    """Whether one replica's ranks are on more than one node."""
    return len({place.node for place in world.ranks}) > 1


def device_index(
    place: RankPlace,
    world: WorldPlan,
    *,
    maps_devices: bool,
    kind: str,
    visible: int,
    ids: Sequence[int] | None = None,
    visible_env: str = "",
) -> int:
    """The device index of a worker among the ``visible`` ones; ``ids`` is ``[device] ids``, in rank order.

    All ranks share the one device of kind "cpu". Raises ``CapabilityError`` naming rank, index and what is visible.
    """
    if kind == "cpu":
        if ids is not None:
            raise CapabilityError(
                f"[device] ids = {list(ids)} names devices, and kind 'cpu' has only the host: remove ids, "
                "or set [device] kind"
            )
        return 0
    position = device_position(place, world, maps_devices=maps_devices)
    who = f"rank {place.rank} (local rank {place.local_rank})"
    sees = f"this process sees {visible} {kind} device{'' if visible == 1 else 's'}"
    if visible:
        sees += f" (0 to {visible - 1})" if visible > 1 else " (0)"
    if visible_env:
        sees += f" through {visible_env}"
    if ids is not None:
        if position + world.devices_per_rank > len(ids):
            raise CapabilityError(
                f"{who} needs entry {position} of [device] ids, which has {len(ids)}: {list(ids)}. "
                "Name a device for every rank, or remove ids"
            )
        index = ids[position]
    else:
        index = position
    if not 0 <= index <= visible - (1 if ids is not None else world.devices_per_rank):
        raise CapabilityError(
            f"{who} needs {kind} device {index}, and {sees}. Make more devices visible, or lower "
            "tensor_parallel_size, pipeline_parallel_size or data_parallel_size in [parallel]"
        )
    return index
