"""Shortest prompt first; a request that waits grows shorter, so that a long one has its turn too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from enginebay.interfaces import Options, Policy, RequestView


class ShortestOptions(Options):
    """What stands under ``[scheduler.options]``."""

    ageing: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="Prompt tokens forgiven per second of waiting; 0: never.")
    ] = 100.0


class Shortest(Policy[ShortestOptions]):
    """The fewest prompt tokens first.

    While all age alike, "length minus age" has the order of "length plus what the age was at arrival", which never
    changes; so a fixed key is enough, and waiting costs nothing.
    """

    def key(self, request: RequestView) -> tuple[float, int]:
        """Prompt tokens, and what later arrivals have to make up for."""
        ageing = self.context.options.ageing
        return (request.num_prompt_tokens + ageing * request.arrival, request.arrival_number)

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        """Who has the most work left gives way."""
        left = [request.num_prompt_tokens + request.max_tokens - request.num_output_tokens for request in candidates]
        return left.index(max(left))
