"""What ranks do in the tests of the worlds that they join: meet, compute, leave, and lose each other."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psutil

from support.rank_models import world_of

__all__ = ["lose_one", "meet", "meet_as_owned"]


def _device() -> Any:
    from enginebay.worker.device import TorchDevice

    return TorchDevice("cpu")


def _listening() -> list[str]:
    own = psutil.Process()
    return sorted({c.laddr.ip for c in own.net_connections("tcp") if c.status == psutil.CONN_LISTEN})


def meet(rank: int, _size: int, rendezvous: str, argument: dict[str, Any]) -> dict[str, Any]:
    """Join, twice one after the other: the sums of each group, and where this process listens."""
    import torch
    import torch.distributed as dist

    from enginebay.worker.distributed import join_world

    plan = world_of(*argument["sizes"])
    told: dict[str, Any] = {"sums": []}
    for time_round in range(2):
        place = (argument.get("rendezvous") or rendezvous) + (f"-{time_round}" if time_round else "")
        membership = join_world(plan.ranks[rank], plan, _device(), place, 60.0)
        for group in (membership.groups.world, membership.groups.tensor, membership.groups.pipeline):
            value = torch.tensor([10.0**rank])
            if group is not None:
                dist.all_reduce(value, group=group)
            told["sums"].append(float(value))
        told["listening"] = _listening()
        told["environ"] = os.environ.get("GLOO_SOCKET_IFNAME")
        assert membership.leave()
        assert membership.leave(), "once more is harmless"
        told["left"] = not dist.is_initialized()
    return told


def meet_as_owned(rank: int, size: int, rendezvous: str, _argument: Any) -> dict[str, Any]:
    """The world is its owner's: joined before, in use, and there afterwards."""
    import torch
    import torch.distributed as dist

    from enginebay.errors import StartFailed
    from enginebay.worker.distributed import ENV, join_world

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=size)
    plan = world_of(2, 1)
    membership = join_world(plan.ranks[rank], plan, _device(), ENV, 60.0)
    value = torch.ones(1)
    dist.all_reduce(value, group=membership.groups.tensor)
    assert membership.leave()
    after = torch.ones(1)
    dist.all_reduce(after)
    try:
        join_world(plan.ranks[rank], plan, _device(), rendezvous + "-2", 60.0)
    except StartFailed as error:
        refused = str(error)
    dist.destroy_process_group()
    return {"in": float(value), "after": float(after), "refused": refused}


def lose_one(rank: int, size: int, rendezvous: str, argument: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 is lost in the way that ``argument`` says while the others are in a collective; what they are told."""
    import torch

    from enginebay.errors import WorkerFailed
    from enginebay.worker.distributed import join_world
    from enginebay.worker.parallel.collectives import TensorGroup

    plan = world_of(size, 1)
    membership = join_world(plan.ranks[rank], plan, _device(), rendezvous, argument["timeout"])
    group = TensorGroup(membership.groups.tensor, rank, size)
    group.reduce(torch.ones(4))
    if rank == 1:
        if argument["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if argument["how"] == "leave":
            membership.leave()
        time.sleep(argument["timeout"] * 3 if argument["how"] == "hang" else 0)
        return {}
    begun = time.monotonic()
    told = ""
    try:
        while True:
            group.reduce(torch.ones(1 << 16))
    except WorkerFailed as error:
        told = str(error)
    took = time.monotonic() - begun
    return {"told": told, "took": took, "left": membership.leave()}
