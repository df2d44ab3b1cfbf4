"""The distributed environment of a worker: what it needs in ``os.environ``, and the process groups it joins."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from enginebay.errors import CapabilityError, StartFailed, one_line
from enginebay.interfaces import Device, WorkerGroups
from enginebay.messages import RankPlace, WorldPlan
from enginebay.worker.launched import numbered_store

__all__ = ["ENV", "Membership", "clean_environment", "join_world", "worker_threads"]

ENV: Final = "env"
"""The rendezvous of ranks that their owner has started: the world is theirs, or is joined from the environment."""

DROPPED = "NCCL_ASYNC_ERROR_HANDLING"
_INTERFACE: Final = "GLOO_SOCKET_IFNAME"
_LEAVE_WITHIN: Final = 10.0
_MAX_DETAIL: Final = 400


def clean_environment(kind: str, environ: MutableMapping[str, str]) -> None:
    """On CUDA, drop ``NCCL_ASYNC_ERROR_HANDLING``: Ray sets it, and it breaks graph capture."""
    if kind == "cuda":
        environ.pop(DROPPED, None)


class Membership:
    """The groups that this rank has joined, and how to leave them."""

    def __init__(self, groups: WorkerGroups, made: tuple[Any, ...] = (), *, owns_world: bool = False) -> None:
        self.groups = groups
        self._made = made
        self._owns_world = owns_world

    def leave(self, within: float = _LEAVE_WITHIN) -> bool:
        """Destroy the groups that were made here, and those alone; whether that was done in ``within`` seconds.

        The peers' next collective, or the one they wait in, fails at once. May be called again, which does nothing.
        """
        made, owns_world = self._made, self._owns_world
        self.groups, self._made, self._owns_world = WorkerGroups(), (), False
        if not made and not owns_world:
            return True
        return _destroy_within(made, owns_world, within)


def join_world(place: RankPlace, world: WorldPlan, device: Device, rendezvous: str, timeout: float) -> Membership:
    """Make this rank part of its group's world; every rank calls it, with one ``rendezvous`` (see ``InitDevice``).

    ``timeout``: seconds that a collective may take, this one included. A world of one rank needs no process group.
    Called before the memory snapshot, so that the communicators' buffers belong to the baseline. Raises
    ``StartFailed`` when the ranks do not meet; what was made until then has been given back.
    """
    if len(world.ranks) == 1 and rendezvous != ENV:
        return Membership(WorkerGroups())
    backend = device.collective_backend()
    if not backend:
        raise CapabilityError(
            f"rank {place.rank} belongs to a world of {len(world.ranks)} ranks, and {device.kind} has no collective "
            "backend: set tensor_parallel_size = 1 and pipeline_parallel_size = 1 in [parallel]"
        )
    import torch.distributed as dist

    borrowed = dist.is_initialized()
    if borrowed and rendezvous != ENV:
        raise StartFailed(
            f"rank {place.rank} runs in a process that is part of another torch.distributed world already: start its "
            "ranks with an executor for worlds that exist (external_launcher), or in processes of their own"
        )
    made: list[Any] = []
    limit = timedelta(seconds=timeout)
    try:
        with _bound_to(_interface(rendezvous, world)):
            if not borrowed:
                _init(place, world, device, backend, rendezvous, limit)
            groups = _subgroups(place, world, backend, limit, made)
            _meet(groups, device)
    except BaseException as error:
        _destroy_within(tuple(made), not borrowed, _LEAVE_WITHIN)
        if isinstance(error, (RuntimeError, ValueError, OSError)):  # what torch raises when somebody is missing
            raise StartFailed(_not_met(place, world, rendezvous, timeout, error)) from error
        raise
    return Membership(groups, tuple(made), owns_world=not borrowed)


def _init(place: RankPlace, world: WorldPlan, device: Device, backend: str, rendezvous: str, limit: timedelta) -> None:
    """Join the default group: from the environment, or in the store that the rendezvous names."""
    import torch
    import torch.distributed as dist

    # communicators of an accelerator are made at once when the device is known, so that they are in the baseline
    own = None if device.kind == "cpu" else torch.device(device.name())
    size = len(world.ranks)
    if rendezvous == ENV:
        store = numbered_store("world", place.rank, limit.total_seconds())
    else:
        store = _store(rendezvous, size, limit)
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=size, timeout=limit, device_id=own)


def _store(rendezvous: str, size: int, limit: timedelta) -> Any:
    # torch.distributed has them too, and does not export them
    from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore

    parts = urlsplit(rendezvous)
    if parts.scheme == "file":
        return FileStore(parts.path, size)
    if parts.scheme == "tcp" and parts.hostname is not None and parts.port is not None:
        store = TCPStore(parts.hostname, parts.port, is_master=False, timeout=limit)
        return PrefixStore(parts.path.strip("/"), store)
    raise StartFailed(f"'{rendezvous}' is no rendezvous: it is file:///folder/name, tcp://address:port/prefix or {ENV}")


def _subgroups(place: RankPlace, world: WorldPlan, backend: str, limit: timedelta, made: list[Any]) -> WorkerGroups:
    """This rank's groups within the world; those of every replica are made, in one order, by all who are in it.

    In a world that several replicas share, the replicas' ranks stand one after the other.
    """
    import torch.distributed as dist

    size, num_all = len(world.ranks), dist.get_world_size()
    replicas = num_all // size
    if replicas * size != num_all or (replicas > 1 and world.data_parallel_size != replicas):
        raise StartFailed(
            f"the torch.distributed world has {num_all} ranks, and [parallel] asks for {size} in "
            f"{world.data_parallel_size} replicas: start as many as are asked for"
        )
    own = world.data_parallel_index if replicas > 1 else 0
    expected = own * size + place.rank
    if dist.get_rank() != expected:
        raise StartFailed(f"rank {place.rank} of the plan is rank {dist.get_rank()} of the world, not {expected}")

    def group(ranks: list[int]) -> Any:
        one = dist.new_group(ranks, timeout=limit, backend=backend)
        if dist.get_rank() in ranks:
            made.append(one)
        return one

    whole = tensor = pipeline = None
    for replica in range(replicas):
        base = replica * size
        joined = group([base + one.rank for one in world.ranks]) if replicas > 1 else dist.group.WORLD
        if replica == own:
            whole = joined
        for stage in sorted({one.pipeline_rank for one in world.ranks}):
            ranks = [base + one.rank for one in world.ranks if one.pipeline_rank == stage]
            if len(ranks) > 1:
                joined = group(ranks)
                if replica == own and stage == place.pipeline_rank:
                    tensor = joined
        for part in sorted({one.tensor_rank for one in world.ranks}):
            ranks = [base + one.rank for one in world.ranks if one.tensor_rank == part]
            if len(ranks) > 1:
                joined = group(ranks)
                if replica == own and part == place.tensor_rank:
                    pipeline = joined
    return WorkerGroups(world=whole if size > 1 else None, tensor=tensor, pipeline=pipeline)


def _meet(groups: WorkerGroups, device: Device) -> None:
    """One small collective in each group: lines are connected, and buffers made, when they are first used."""
    import torch
    import torch.distributed as dist

    for group in (groups.world, groups.tensor, groups.pipeline):
        if group is not None:
            dist.all_reduce(torch.zeros(1, device=device.name()), group=group)
    device.synchronize()


def _destroy_within(made: tuple[Any, ...], world: bool, seconds: float) -> bool:
    """In a thread of its own: a communicator whose peers are gone may wait for them for longer than anybody else."""
    thread = threading.Thread(target=_destroy, args=(made, world), name="leave-world", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _destroy(made: tuple[Any, ...], world: bool) -> None:
    import torch.distributed as dist

    if world:
        if dist.is_initialized():
            dist.destroy_process_group()  # with every group made from it
        return
    for group in reversed(made):
        dist.destroy_process_group(group)


def _interface(rendezvous: str, world: WorldPlan) -> str | None:
    """The loopback's name when all ranks are on this host, so that nothing listens where others could reach it."""
    local = urlsplit(rendezvous).scheme == "file"
    if rendezvous == ENV:
        local = os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE", "?")
    if not local or os.environ.get(_INTERFACE):
        return None
    names = [name for _, name in socket.if_nameindex()]
    wanted = "lo0" if sys.platform == "darwin" else "lo"
    return wanted if wanted in names else None


@contextmanager
def _bound_to(interface: str | None) -> Iterator[None]:
    """While open, Gloo's new groups listen on this interface."""
    if interface is None:
        yield
        return
    os.environ[_INTERFACE] = interface
    try:
        yield
    finally:
        del os.environ[_INTERFACE]


def _not_met(place: RankPlace, world: WorldPlan, rendezvous: str, timeout: float, error: Exception) -> str:
    where = urlsplit(rendezvous).scheme or rendezvous
    return (
        f"rank {place.rank} did not meet the other {len(world.ranks) - 1} ranks of its world within {timeout:g} s "
        f"([deadlines] collective), by {where}: {one_line(' '.join(str(error).split()), _MAX_DETAIL)}"
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
