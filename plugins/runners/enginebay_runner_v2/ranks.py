"""What a runner has to settle with the other tensor ranks of its world; a rank alone settles it with itself."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from msgspec.structs import replace

from enginebay.interfaces import RunnerContext
from enginebay_runner_v2.collectives import bound, join, leave
from enginebay_runner_v2.options import RunnerV2Options
from enginebay_runner_v2.prepared import PreparedStep

__all__ = ["Ranks"]


class Ranks:
    """The ranks that share each layer, by the groups that the worker has joined."""

    def __init__(self, context: RunnerContext[RunnerV2Options]) -> None:
        self._world, self._tensor = context.groups.world, context.groups.tensor
        self._rank, self._size = context.place.tensor_rank, context.world.tensor_parallel_size
        self._name: str | None = None

    def bound(self, prepared: PreparedStep) -> PreparedStep:
        """The step with this world's group in its collectives."""
        if self._size == 1:
            return prepared
        from enginebay.worker.parallel.collectives import TensorGroup  # with torch.distributed

        self.leave()
        self._name = join(TensorGroup(self._tensor, self._rank, self._size))
        return replace(prepared, body=bound(prepared.body, self._name), head=bound(prepared.head, self._name))

    def agreed(self) -> AbstractContextManager[Any]:
        """Whatever is done within is done by every rank, or every rank fails; nobody waits for one that did."""
        if self._size == 1:
            return nullcontext()
        from enginebay.worker.parallel.collectives import agreed

        return agreed(self._world, torch.device("cpu"))

    def all(self, mine: bool) -> bool:
        """Whether every rank says yes."""
        if self._size == 1:
            return mine
        from enginebay.worker.parallel.collectives import world_agrees

        return world_agrees(self._world, fine=mine, device=torch.device("cpu"))

    def leave(self) -> None:
        """Forget the group; a step that was bound to it does not run any more."""
        if self._name is not None:
            leave(self._name)
            self._name = None
