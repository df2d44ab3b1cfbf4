"""The policy: each tenant has a counter of the tokens that it was served, and the smallest counter goes first.

The counters are those of "virtual token counter" scheduling (Sheng et al., Fairness in Serving Large Language Models,
2024): what is counted is work that was done, not requests that were sent, so many short requests and few long ones
come to the same share. Each step costs the same however many requests wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from typing import Annotated

from pydantic import Field

from enginebay.interfaces import Options, Policy, PolicyState, RequestView, SchedulerContext
from enginebay.messages import FinishReason

_Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class FairOptions(Options):
    """What stands under ``[scheduler.options]``."""

    weights: dict[str, _Weight] = Field(
        default_factory=dict, description="Share of each tenant beside the others'; 1 where none is given."
    )


class FairShares(Policy[FairOptions]):
    """Whoever was served least, by weight, is next; within a tenant, who came first.

    Counted are the prompt tokens that an admitted request has to compute, and the tokens that are committed for it;
    what is computed again after a preemption is not the tenant's doing, and is not counted. A tenant that was idle
    starts at the least counter of those who are not: what it did not use is not saved up, and what it owes is
    remembered for as long as others are behind.
    """

    def __init__(self, context: SchedulerContext[FairOptions]) -> None:
        super().__init__(context)
        self._unfinished: Counter[str] = Counter()
        self._served: dict[str, float] = {}
        self._order: list[tuple[float, str]] = []  # each tenant of _served once, with a counter that it had
        self._settled = 0.0

    def key(self, request: RequestView) -> tuple[int]:
        """The order of arrival, within a tenant."""
        if request.tenant not in self._unfinished:
            least = self._least()
            if request.tenant not in self._served:
                self._served[request.tenant] = least
                heappush(self._order, (least, request.tenant))
        self._unfinished[request.tenant] += 1
        return (request.arrival_number,)

    def group(self, request: RequestView) -> str:
        """Each tenant is a line of its own."""
        return request.tenant

    def group_key(self, group: str) -> tuple[float]:
        """What the tenant was served so far."""
        return (self._served[group],)

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        """The latest request of the tenant that was served most."""
        served = [(self._served[request.tenant], request.arrival_number) for request in candidates]
        return served.index(max(served))

    def admit(self, request: RequestView, state: PolicyState) -> bool:
        """Count the prompt now, so that the next to be admitted in this step is chosen with it counted."""
        if not request.num_preemptions:
            self._count(request.tenant, request.num_prompt_tokens - self.context.kv.cached_prefix_tokens(request))
        return True

    def on_output(self, request: RequestView, token_ids: tuple[int, ...]) -> None:
        """Count what was put out."""
        self._count(request.tenant, len(token_ids))

    def on_finished(self, request: RequestView, reason: FinishReason) -> None:
        """A tenant without unfinished requests is idle."""
        self._unfinished[request.tenant] -= 1
        if not self._unfinished[request.tenant]:
            del self._unfinished[request.tenant]

    def _count(self, tenant: str, num_tokens: int) -> None:
        self._served[tenant] += num_tokens / self.context.options.weights.get(tenant, 1.0)

    def _least(self) -> float:
        """The least counter of those who are not idle. Idle ones that are not ahead of it are forgotten."""
        while self._order:
            served, tenant = self._order[0]
            if served != self._served[tenant]:  # counters only grow: the least is right when the first is up to date
                heapreplace(self._order, (self._served[tenant], tenant))
            elif tenant in self._unfinished:
                return served
            else:
                heappop(self._order)
                del self._served[tenant]
                self._settled = served
        return self._settled
