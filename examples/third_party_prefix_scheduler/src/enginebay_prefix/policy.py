"""Whose beginning is in the KV cache goes first: requests of one conversation or document follow each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from enginebay.interfaces import Options, Policy, RequestView, SchedulerContext


class PrefixOptions(Options):
    """What stands under ``[scheduler.options]``."""

    window: Annotated[int, Field(ge=1, le=1024, description="How many of those that wait longest are looked at.")] = 64
    reach: Annotated[
        int, Field(ge=0, description="How many later arrivals, at most, may go before the one that waits longest.")
    ] = 256


class CachedFirst(Policy[PrefixOptions]):
    """Of those that wait longest, the one with the least left to compute per token of its prompt.

    What is cached changes with every step, so no fixed key can say it: the key is arrival, and ``choose`` looks at the
    first ``window`` of that order each time.
    """

    def __init__(self, context: SchedulerContext[PrefixOptions]) -> None:
        super().__init__(context)
        self.window = context.options.window

    def key(self, request: RequestView) -> tuple[int]:
        """The order of arrival."""
        return (request.arrival_number,)

    def choose(self, requests: Sequence[RequestView]) -> int:
        """The largest cached share of a prompt within reach of the oldest; the oldest of equals."""
        last = requests[0].arrival_number + self.context.options.reach
        shares = [self._cached_share(request) for request in requests if request.arrival_number <= last]
        return shares.index(max(shares))

    def _cached_share(self, request: RequestView) -> float:
        return self.context.kv.cached_prefix_tokens(request) / request.num_tokens
