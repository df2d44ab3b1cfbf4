"""Policies that answer at random, or against all sense, for loads that the mechanics must bring to their end."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from enginebay.interfaces import NoOptions, Policy, PolicyState, RequestView, SchedulerContext
from support.loop import Arrival

__all__ = ["POLICIES"]


class Lottery(Policy[NoOptions]):
    """Everything by lot."""

    def __init__(self, context: SchedulerContext[NoOptions]) -> None:
        super().__init__(context)
        self.random = Random(context.limits.max_num_seqs + context.kv.num_blocks)
        self.window = self.random.choice((0, 1, 5))

    def key(self, request: RequestView) -> tuple[int]:
        return (self.random.randrange(5),)

    def choose(self, requests: Sequence[RequestView]) -> int:
        return self.random.randrange(len(requests))

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        index = self.random.randrange(len(candidates) + 1)
        return index if index < len(candidates) else None

    def admit(self, request: RequestView, state: PolicyState) -> bool:
        return self.random.random() < 0.8


class Overtaking(Lottery):
    """By lot, and preempted requests have no privilege."""

    may_overtake_preempted = True


class Spiteful(Lottery):
    """Takes from whoever did not ask."""

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        others = [index for index, view in enumerate(candidates) if view.request_id != needed.request_id]
        return others[-1] if others else 0


class Never(Lottery):
    """Never preempts."""

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        return None


class Urgent(Lottery):
    """Running requests give way to waiting ones by lot."""

    preempts_running = True


class UrgentOvertaking(Urgent):
    """The same, and those that gave way have no privilege."""

    may_overtake_preempted = True


POLICIES: list[type[Policy[NoOptions]]] = [Arrival, Lottery, Overtaking, Spiteful, Never, Urgent, UrgentOvertaking]
