"""A whole scheduler that has the mechanics inside, for tests that change what it says on the way."""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.interfaces import NoOptions, Policy, RequestView, Scheduler, SchedulerContext
from enginebay.messages import Committed, EngineRequest, FinishReason, SchedulerOutput, SchedulerStats
from enginebay.scheduling import MechanicsScheduler

__all__ = ["OverMechanics"]


class _Arrival(Policy[NoOptions]):
    def key(self, request: RequestView) -> tuple[int, ...]:
        return (request.arrival_number,)


class OverMechanics(Scheduler[NoOptions]):
    """First come, first served; ``inner`` does the work."""

    def __init__(self, context: SchedulerContext[NoOptions]) -> None:
        super().__init__(context)
        self.inner: Scheduler[NoOptions] = MechanicsScheduler(_Arrival(context), context)

    def add_request(self, request: EngineRequest) -> None:
        self.inner.add_request(request)

    def finish_requests(self, request_ids: Sequence[str], status: FinishReason) -> None:
        self.inner.finish_requests(request_ids, status)

    def schedule(self) -> SchedulerOutput:
        return self.inner.schedule()

    def update_from_output(self, scheduler_output: SchedulerOutput, committed: Committed) -> None:
        self.inner.update_from_output(scheduler_output, committed)

    def preempt_all(self) -> None:
        self.inner.preempt_all()

    def has_requests(self) -> bool:
        return self.inner.has_requests()

    def make_stats(self) -> SchedulerStats:
        return self.inner.make_stats()
