"""What observers are told: plain numbers about a step, a request, a scheduler."""

from __future__ import annotations

from msgspec import Struct

from enginebay.messages._requests import FinishReason, Usage


class SchedulerStats(Struct, frozen=True, kw_only=True):
    """How a scheduler stands: queue lengths, KV cache use, and counters since the start.

    ``prefix_queries`` counts the tokens of requests that looked for a cached prefix, each at its first admission only,
    and ``prefix_hits`` those that were found. ``evictions`` are cached blocks that were handed out again.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_cached_blocks: int = 0
    evictions: int = 0

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache that live requests hold, 0 to 1."""
        return 1.0 - self.num_free_blocks / self.num_blocks if self.num_blocks else 0.0


class StepReport(Struct, frozen=True, kw_only=True):
    """One finished step. Times are nanoseconds of the monotonic clock, in the order in which they come.

    ``group`` is the replica that had it, which numbers its steps by itself. ``num_proposed_tokens`` were verified in
    it, ``num_accepted_tokens`` of them are among those committed.
    """

    step: int
    generation: int
    num_requests: int
    num_scheduled_tokens: int
    num_committed_tokens: int
    start_ns: int
    scheduled_ns: int
    executed_ns: int
    end_ns: int
    stats: SchedulerStats
    num_proposed_tokens: int = 0
    num_accepted_tokens: int = 0
    group: int = 0


class RequestSummary(Struct, frozen=True, kw_only=True):
    """One ended request. Times are seconds of the monotonic clock; None where it never came so far.

    Each replica numbers its steps by itself: ``first_step`` is one of ``first_step_group``, ``last_step`` one of
    ``last_step_group``, which is another where the request was moved.
    """

    request_id: str
    finish_reason: FinishReason
    usage: Usage
    arrival: float
    scheduled: float | None
    first_token: float | None
    finished: float
    first_step: int | None = None
    last_step: int | None = None
    error: str | None = None
    first_step_group: int | None = None
    last_step_group: int | None = None
