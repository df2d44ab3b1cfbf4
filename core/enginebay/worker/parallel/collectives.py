"""What the ranks of a world say to each other in a step, and the error when one of them does not answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from enginebay.errors import WorkerFailed, one_line

__all__ = ["Heard", "PipelineGroup", "TensorGroup", "agreed", "world_agrees"]

_MAX_DETAIL = 300
_DRAWN = "telling all stages what was drawn"


@contextmanager
def _told(what: str, group: Any) -> Iterator[None]:
    """What torch raises when a peer is gone or late, with the ranks that it may be."""
    try:
        yield
    except RuntimeError as error:  # also DistBackendError; Gloo raises it bare
        own = dist.get_rank()
        others = [str(rank) for rank in dist.get_process_group_ranks(group) if rank != own]
        who = f"rank {others[0]}" if len(others) == 1 else f"one of ranks {', '.join(others)}"
        raise WorkerFailed(
            f"{who} was lost to rank {own} in a collective ({what}): it has ended, failed, or is stuck: "
            + one_line(" ".join(str(error).split()), _MAX_DETAIL)
        ) from error


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """The ranks that share each layer. ``ordered``: sums are taken in the order of ranks, whatever their size."""

    group: Any
    rank: int
    size: int
    ordered: bool = False

    def reduce(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors, the same bits on each."""
        if part.numel() == 0:
            return part
        part = part.contiguous()
        if not self.ordered:
            with _told("sum of a layer's parts", self.group):
                dist.all_reduce(part, group=self.group)
            return part
        first, *others = self._all("parts of a sum", part)
        total: torch.Tensor = first.clone()
        for other in others:
            total += other
        return total

    def gather(self, part: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """All ranks' tensors side by side in the last dimension; rank r's has ``sizes[r]`` columns."""
        if part.numel() == 0:
            return part.new_empty((*part.shape[:-1], sum(sizes)))
        parts = self._all("columns", torch.nn.functional.pad(part, (0, max(sizes) - part.shape[-1])).contiguous())
        return torch.cat([each[..., :size] for each, size in zip(parts, sizes, strict=True)], dim=-1)

    def same_everywhere(self, values: torch.Tensor) -> bool:
        """Whether all ranks have the same bits; the answer is the same on each."""
        first, *others = self._all("activations", values.contiguous().view(torch.uint8))
        return all(torch.equal(first, other) for other in others)

    def _all(self, what: str, own: torch.Tensor) -> torch.Tensor:
        """``[size, …]``: the tensors of all ranks, which have one shape."""
        every = own.new_empty((self.size, *own.shape))
        with _told(f"gathering of {what}", self.group):
            dist.all_gather(list(every.unbind()), own, group=self.group)
        return every


@dataclass(frozen=True, slots=True)
class Heard:
    """Values on their way from the last stage."""

    group: Any
    work: Any
    into: torch.Tensor

    def is_here(self) -> bool:
        """Whether ``values`` waits for nothing."""
        return bool(self.work.is_completed())

    def values(self) -> torch.Tensor:
        """Wait for them."""
        with _told(_DRAWN, self.group):
            self.work.wait()
        return self.into


@dataclass(frozen=True, slots=True)
class PipelineGroup:
    """The ranks that hold the stages of one part of each layer; ``stage`` is this one's, from 0 to ``size`` - 1."""

    group: Any
    stage: int
    size: int

    def send(self, values: torch.Tensor) -> None:
        """To the next stage."""
        with _told(f"sending to stage {self.stage + 1}", self.group):
            dist.send(values.contiguous(), group=self.group, group_dst=self.stage + 1)

    def receive(self, into: torch.Tensor) -> torch.Tensor:
        """From the stage before."""
        with _told(f"receiving from stage {self.stage - 1}", self.group):
            dist.recv(into, group=self.group, group_src=self.stage - 1)
        return into

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of all stages' values, in place."""
        with _told("gathering what each stage knows of its layers", self.group):
            dist.all_reduce(values, group=self.group)
        return values

    def tell(self, values: torch.Tensor) -> None:
        """On the last stage: all others get these values, by a ``hear`` of theirs."""
        with _told(_DRAWN, self.group):
            dist.broadcast(values, group=self.group, group_src=self.size - 1)

    def hear(self, into: torch.Tensor) -> Heard:
        """On another stage: the last one's next ``tell``, of as many values. Does not wait for it."""
        with _told(_DRAWN, self.group):
            work = dist.broadcast(into, group=self.group, group_src=self.size - 1, async_op=True)
        return Heard(self.group, work, into)


@contextmanager
def agreed(group: Any, device: torch.device) -> Iterator[None]:
    """Whatever is done within is done by every rank of ``group``, or each fails; nobody waits for one that did."""
    try:
        yield
    except Exception:
        world_agrees(group, fine=False, device=device)
        raise
    if not world_agrees(group, fine=True, device=device):
        raise WorkerFailed("another rank of the world failed to load its part of the model: see its error")


def world_agrees(group: Any, fine: bool, device: torch.device) -> bool:
    """Whether every rank says that it is fine. ``group`` None: a world of this rank alone."""
    if group is None:
        return fine
    flag = torch.tensor([0 if fine else 1], device=device)
    with _told("agreeing on the load", group):
        dist.all_reduce(flag, group=group)
    return not int(flag.item())
