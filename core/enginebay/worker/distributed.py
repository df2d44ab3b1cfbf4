"""The distributed environment of a worker: what it needs in ``os.environ``, and the process groups it joins."""

from __future__ import annotations

from collections.abc import MutableMapping

from enginebay.errors import CapabilityError
from enginebay.interfaces import Device
from enginebay.messages import RankPlace, WorldPlan

DROPPED = "NCCL_ASYNC_ERROR_HANDLING"


def clean_environment(kind: str, environ: MutableMapping[str, str]) -> None:
    """On CUDA, drop ``NCCL_ASYNC_ERROR_HANDLING``: Ray sets it, and it breaks graph capture."""
    if kind == "cuda":
        environ.pop(DROPPED, None)


def join_world(place: RankPlace, world: WorldPlan, device: Device) -> None:
    """Make this rank part of its group's world. A world of one rank needs no process group.

    Called before the memory snapshot, so that the communicators' buffers belong to the baseline.
    """
    if len(world.ranks) == 1:
        return
    raise CapabilityError(
        f"rank {place.rank} belongs to a world of {len(world.ranks)} ranks, and this version makes no process groups "
        f"({device.collective_backend() or 'no collective backend'} on {device.kind}): set tensor_parallel_size = 1 "
        "and pipeline_parallel_size = 1 in [parallel]"
    )


def worker_threads(
    *, configured: int | None, cores: int, ranks_on_node: int, omp_num_threads: str | None
) -> int | None:
    """How many threads a worker computes with; None leaves the framework's own number.

    ``[worker] threads`` wins; then ``OMP_NUM_THREADS``, which the framework reads itself; else the cores shared out.
    """
    if configured is not None:
        return configured
    if omp_num_threads:
        return None
    return max(1, cores // max(1, ranks_on_node))
