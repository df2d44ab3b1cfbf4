"""What ranks do in the tests of runner v2's collectives: run a record that sums, agree, and lose each other."""

from __future__ import annotations

import os
import signal
from typing import Any

from support.rank_models import world_of

__all__ = ["agree", "lose_one"]


def _context(rank: int, size: int, groups: Any) -> Any:
    from types import SimpleNamespace

    plan = world_of(size, 1)
    return SimpleNamespace(groups=groups, place=plan.ranks[rank], world=plan)


def _join(rank: int, size: int, rendezvous: str) -> Any:
    from enginebay.worker.device import TorchDevice
    from enginebay.worker.distributed import join_world

    plan = world_of(size, 1)
    return join_world(plan.ranks[rank], plan, TorchDevice("cpu"), rendezvous, 60.0)


def agree(rank: int, size: int, rendezvous: str, _argument: Any) -> dict[str, Any]:
    """Whether all say yes when all do and when the first one alone does, and what they hear of one that fails."""
    from enginebay.errors import ModelError, WorkerFailed
    from enginebay_runner_v2.ranks import Ranks

    membership = _join(rank, size, rendezvous)
    ranks = Ranks(_context(rank, size, membership.groups))
    told: dict[str, Any] = {"all": ranks.all(True), "first": ranks.all(rank == 0)}
    try:
        with ranks.agreed():
            if rank == 1:
                raise ModelError("torn")
    except (ModelError, WorkerFailed) as error:
        told["heard"] = str(error)
    membership.leave()
    return told


def lose_one(rank: int, size: int, rendezvous: str, argument: dict[str, Any]) -> dict[str, Any]:
    """Both run a record that sums, natively or as code; then rank 1 ends, and rank 0 runs it once more."""
    import torch

    from enginebay.errors import WorkerFailed
    from enginebay.graph import Record, RecordNode
    from enginebay.worker.parallel.collectives import TensorGroup
    from enginebay_runner_v2 import ops  # noqa: F401  # the operators
    from enginebay_runner_v2.collectives import bound, join
    from enginebay_runner_v2.execution import CodePart, NativePart
    from enginebay_runner_v2.native import load

    membership = _join(rank, size, rendezvous)
    name = join(TensorGroup(membership.groups.tensor, rank, size))
    nodes = [
        RecordNode(name="s", op="enginebay::all_reduce", args=[{"ref": "x"}, "tensor"]),
        RecordNode(name="g", op="enginebay::all_gather", args=[{"ref": "x"}, [3, 3], "tensor"]),
    ]
    record = bound(Record(format=1, inputs=["x"], constants=[], nodes=nodes, outputs=["s", "g"]), name)
    if argument["native"]:
        load()
    part = NativePart(record) if argument["native"] else CodePart(record)
    x = torch.full((2, 3), 10.0**rank)
    summed, gathered = part.run([x])
    told: dict[str, Any] = {"sum": summed.tolist(), "all": gathered.tolist(), "x": x.tolist()}
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            part.run([x])
    except WorkerFailed as error:
        told["heard"] = str(error)
    return told
