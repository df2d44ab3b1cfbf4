"""The policies that the simulation runs the mechanics under: the built-in one, and two that try other ways."""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.interfaces import NoOptions, Policy, RequestView
from enginebay_fcfs.policy import FirstComeFirstServed


class ByPriority(Policy[NoOptions]):
    """The lowest number first; who is worst gives way."""

    may_overtake_preempted = True

    def key(self, request: RequestView) -> tuple[int, int]:
        return (request.priority, request.arrival_number)

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int:
        return max(range(len(candidates)), key=lambda index: self.key(candidates[index]))


class Choosy(Policy[NoOptions]):
    """Looks at three, takes the shortest, and lets the first of the running line give way."""

    window = 3

    def key(self, request: RequestView) -> tuple[int]:
        return (request.arrival_number,)

    def choose(self, requests: Sequence[RequestView]) -> int:
        return min(range(len(requests)), key=lambda index: requests[index].num_tokens)

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int:
        return 0


POLICIES: dict[str, type[Policy[NoOptions]]] = {
    "fcfs": FirstComeFirstServed,
    "priority": ByPriority,
    "choosy": Choosy,
}
