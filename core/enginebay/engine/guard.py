"""A scheduler as the core calls it: what a stranger's code raises, or holds back for ever, is told with its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from enginebay.errors import EnginebayError, PolicyFailed
from enginebay.interfaces import Scheduler
from enginebay.messages import (
    Committed,
    EngineRequest,
    FinishReason,
    GrammarOutput,
    SchedulerOutput,
    SchedulerStats,
    StepReport,
)
from enginebay.runtime import Clock

__all__ = ["GuardedScheduler"]


class GuardedScheduler:
    """The scheduler's methods; every exception that is not one of ours becomes ``PolicyFailed``.

    ``name`` is how messages name it ("scheduler 'fcfs' 1.0"); ``patience`` is how many seconds it may schedule nothing.
    """

    def __init__(self, scheduler: Scheduler[Any], *, name: str, clock: Clock, patience: float) -> None:
        self._scheduler = scheduler
        self._name = name
        self._clock = clock
        self._patience = patience
        self._last_progress: float | None = None

    def add_request(self, request: EngineRequest) -> None:
        with self._guard("add_request"):
            self._scheduler.add_request(request)

    def finish_requests(self, request_ids: Sequence[str], status: FinishReason) -> None:
        with self._guard("finish_requests"):
            self._scheduler.finish_requests(request_ids, status)

    def schedule(self) -> SchedulerOutput:
        with self._guard("schedule"):
            return self._scheduler.schedule()

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        with self._guard("get_grammar_bitmask"):
            return self._scheduler.get_grammar_bitmask(scheduler_output)

    def update_from_output(self, scheduler_output: SchedulerOutput, committed: Committed) -> None:
        with self._guard("update_from_output"):
            self._scheduler.update_from_output(scheduler_output, committed)

    def preempt_all(self) -> None:
        with self._guard("preempt_all"):
            self._scheduler.preempt_all()

    def has_requests(self) -> bool:
        with self._guard("has_requests"):
            return self._scheduler.has_requests()

    def make_stats(self) -> SchedulerStats:
        with self._guard("make_stats"):
            return self._scheduler.make_stats()

    def on_step(self, report: StepReport) -> None:
        with self._guard("on_step"):
            self._scheduler.on_step(report)

    def watch_progress(self, *, scheduled: bool, num_waiting: int) -> None:
        """A scheduler may hold requests back for a while, but not for ever: then it raises ``PolicyFailed``."""
        now = self._clock.now()
        if scheduled or not num_waiting or self._last_progress is None:
            self._last_progress = now
        elif now - self._last_progress > self._patience:
            raise PolicyFailed(
                f"{self._name} has scheduled nothing for {now - self._last_progress:.0f} s, "
                f"although {num_waiting} requests wait"
            )

    @contextmanager
    def _guard(self, method: str) -> Iterator[None]:
        try:
            yield
        except EnginebayError:
            raise
        except Exception as error:
            raise PolicyFailed(f"{self._name} raised {type(error).__name__} in {method}: {error}") from error
