"""Shortest job first; a request that waits grows shorter, so that a long one has its turn too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from enginebay.interfaces import Options, Policy, RequestView


class SjfOptions(Options):
    """What stands under ``[scheduler.options]``."""

    ageing: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="Tokens forgiven per second of waiting; 0: never.")
    ] = 100.0
    output_weight: Annotated[
        float,
        Field(ge=0, allow_inf_nan=False, description="What a token of max_tokens counts beside one of the prompt."),
    ] = 1.0


class ShortestJobFirst(Policy[SjfOptions]):
    """The least work first: prompt tokens, and as many more as the request may put out.

    While all age alike, "length minus age" has the order of "length plus what the age was at arrival", which never
    changes; so a fixed key is enough, and waiting costs nothing.
    """

    def key(self, request: RequestView) -> tuple[float, int]:
        """The work, and what later arrivals have to make up for."""
        options = self.context.options
        work = request.num_prompt_tokens + options.output_weight * request.max_tokens
        return (work + options.ageing * request.arrival, request.arrival_number)

    def victim(self, candidates: Sequence[RequestView], needed: RequestView) -> int | None:
        """Who has the most work left gives way; of equals, the latest."""
        return max(range(len(candidates)), key=lambda index: self._left(candidates[index]))

    def _left(self, request: RequestView) -> tuple[int, int]:
        return (request.num_prompt_tokens + request.max_tokens - request.num_output_tokens, request.arrival_number)
