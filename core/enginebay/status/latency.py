"""How long workers take to become ready, by stage: one sample for each life that was seen from its beginning. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from enginebay.messages import Phase, StatusRecord, WorkerStatus
from enginebay.status._stages import took

__all__ = ["StartSample", "StartTracker"]


@dataclass(frozen=True, kw_only=True)
class StartSample:
    """Seconds of one start: each stage, the whole, and the whole without reading the weights."""

    stages: Mapping[Phase, float]
    total: float
    without_weights: float


class StartTracker:
    """Told of acknowledged records; gives each start to ``sample`` once, when its readiness was acknowledged.

    A life that was ready when it was first seen (one that is older than this process) gives no sample, nor does one
    that ends before it is ready. What follows the first readiness changes nothing.
    """

    def __init__(self, sample: Callable[[WorkerStatus, StartSample], None]) -> None:
        self._sample = sample
        self._starting: set[str] = set()
        self._known: set[str] = set()

    def acknowledged(self, record: StatusRecord) -> None:
        """A sink holds this record now."""
        status = record.status
        key = status.incarnation.id
        if key not in self._known:
            self._known.add(key)
            if status.phase is not Phase.READY or status.stages:
                self._starting.add(key)
        if status.phase.terminal:
            self._starting.discard(key)
            if record.finished:
                self._known.discard(key)
        elif status.phase is Phase.READY and key in self._starting:
            self._starting.discard(key)
            if stages := took(status):
                total = sum(stages.values())
                loading = stages.get(Phase.LOADING, 0.0)
                self._sample(status, StartSample(stages=stages, total=total, without_weights=total - loading))
