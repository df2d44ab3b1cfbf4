"""How an engine stands: in figures for programs, in words for people, and whether it does what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from enginebay.engine.death import Death
from enginebay.engine.execution import Execution
from enginebay.engine.guard import GuardedScheduler
from enginebay.engine.parts import CoreParts, EngineStats
from enginebay.engine.pipeline import Pipeline
from enginebay.engine.requests import Requests
from enginebay.engine.verdicts import announced
from enginebay.messages import ControlDone, EngineHealth, SchedulerStats, WorkerStatus
from enginebay.status import group_status

__all__ = ["Figures"]

_BEATS: Final = 3
"""Heartbeats that a step may take before the engine is not called well."""


class Figures:
    """One core's. Read from any thread, also while a step does not end."""

    def __init__(
        self,
        parts: CoreParts,
        requests: Requests,
        pipeline: Pipeline,
        execution: Execution,
        scheduler: GuardedScheduler,
    ) -> None:
        self._parts = parts
        self._clock = parts.runtime.clock
        self._requests = requests
        self._pipeline = pipeline
        self._execution = execution
        self._scheduler = scheduler

    def now(self) -> EngineStats:
        """The figures, the scheduler's as they were when it was asked last; without workers, all requests wait."""
        scheduler = self._scheduler.last_stats
        if self._scheduler.is_void:
            scheduler = replace(scheduler, num_waiting=len(self._requests))
        return EngineStats(
            unfinished=len(self._requests),
            steps=self._pipeline.num_steps,
            committed_tokens=self._requests.num_tokens,
            finished=self._requests.num_finished,
            dropped_replies=self._execution.num_dropped,
            scheduler=scheduler,
            proposed_tokens=self._requests.num_proposed,
            accepted_tokens=self._requests.num_accepted,
            moved=self._requests.num_moved,
        )

    def status(self, death: Death | None) -> ControlDone:
        """All of it, as ``enginebay status`` shows it; ``death``: what the engine has ended of."""
        figures, parts, life = self.now(), self._parts, self._parts.life
        health = self._health(death)
        facts = {
            "state": life.words if death is None else "dead",
            "health": "healthy" if health.healthy else health.why,
            "unfinished": str(figures.unfinished),
            "running": str(figures.scheduler.num_running),
            "waiting": str(figures.scheduler.num_waiting),
            "steps": str(figures.steps),
            "committed_tokens": str(figures.committed_tokens),
            "finished": str(figures.finished),
            "kv_blocks": _cache_words(figures.scheduler),
            "prefix_hits": f"{figures.scheduler.prefix_hits} of {figures.scheduler.prefix_queries} tokens",
            "generation": str(parts.generation.current),
            "weights": life.version or life.path or ("given" if life.given else "the model's own"),
            "model": parts.model,
            "scheduler": parts.scheduler_name,
            "runner": parts.runner_name,
            "executor": parts.executor_name,
        }
        if figures.moved:
            facts["moved"] = str(figures.moved)
        return ControlDone(facts=facts, health=health)

    def _health(self, death: Death | None) -> EngineHealth:
        """Judged by what comes of it: by workers that are ready, and steps that end."""
        roster = self._parts.roster
        workers = roster.statuses()
        why = death.message if death is not None else self._fault(workers)
        wall = self._clock.wall_ns() / 1e9
        return EngineHealth(healthy=not why, why=why, workers=workers, sinks=roster.sinks(), wall=wall)

    def _fault(self, workers: Sequence[WorkerStatus]) -> str:
        if (refusal := self._parts.life.refusal()) is not None:
            return str(refusal)
        group = group_status(self._parts.roster.slots, workers)
        return self._stall() if group.ready else group.words

    def _stall(self) -> str:
        """Why the step that is waited for has not ended in time, and in what its workers have asked for."""
        try:
            oldest = self._pipeline.in_flight[0]
        except IndexError:
            return ""
        waited = (self._clock.now_ns() - oldest.start_ns) / 1e9
        if waited < _BEATS * self._parts.heartbeat or announced(self._parts.executor.health().ranks) > 0.0:
            return ""
        return f"step {oldest.step} has not ended for {waited:.0f} s"


def _cache_words(stats: SchedulerStats) -> str:
    used = stats.num_blocks - stats.num_free_blocks
    return f"{used} of {stats.num_blocks} in use, {stats.num_cached_blocks} with cached content"
