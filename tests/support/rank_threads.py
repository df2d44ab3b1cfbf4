"""Ranks of a test that are threads of one process: where they leave tensors for each other, and take them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

__all__ = ["Meeting", "ThreadGroup", "on_threads"]

T = TypeVar("T")


@dataclass
class Meeting:
    """Where the ranks of one process exchange tensors, in threads: each leaves its own, and takes all of them."""

    size: int
    barrier: threading.Barrier = field(init=False)
    left: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=60)
        self.left = [None] * self.size

    def all_of(self, rank: int, own: torch.Tensor) -> list[torch.Tensor]:
        self.left[rank] = own.clone()
        self.barrier.wait()
        every = list(self.left)
        self.barrier.wait()  # nobody leaves the next one before all have taken these
        return every


@dataclass
class ThreadGroup:
    """A tensor rank that is a thread, as the operators of runner v2 ask for one."""

    meeting: Meeting
    rank: int

    def reduce(self, part: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.meeting.all_of(self.rank, part)).sum(0)

    def gather(self, part: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        parts = self.meeting.all_of(self.rank, part)
        assert [one.shape[-1] for one in parts] == list(sizes)
        return torch.cat(parts, dim=-1)


def on_threads(meeting: Meeting, job: Callable[[int], T]) -> list[T]:
    """What each rank's job returns; one that fails keeps nobody waiting."""

    def one(rank: int) -> T:
        torch.set_num_threads(1)
        try:
            return job(rank)
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(meeting.size) as pool:
        return list(pool.map(one, range(meeting.size)))
