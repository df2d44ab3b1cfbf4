"""How long workers take to become ready, by stage: one sample for each start that came to its end.

A sample is made of what the book says, when the core calls a worker ready for the first time: whether and when a sink
has been told of it makes no start longer, and sinks that are down lose no sample.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from enginebay.errors import in_words, is_interrupt
from enginebay.messages import Incarnation, Phase, Slot, WorkerStatus
from enginebay.status._stages import took

__all__ = ["StartSample", "StartTimes", "start_of"]

_LOG = logging.getLogger(__name__)

_MOST: Final = 256


@dataclass(frozen=True, kw_only=True)
class StartSample:
    """Seconds of each stage of one start, in their order."""

    slot: Slot
    incarnation: Incarnation
    restarts: int
    stages: Mapping[Phase, float]

    @property
    def total(self) -> float:
        """The whole."""
        return sum(self.stages.values())

    @property
    def without_weights(self) -> float:
        """The whole, but for the reading of the weights: what a model's size has no part in."""
        return self.total - self.stages.get(Phase.LOADING, 0.0)

    @property
    def words(self) -> str:
        """``ready after 6.1 s: Starting 0.5, InitDevice 0.4, Loading 1.2, Warmup 4.0``."""
        parts = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in self.stages.items())
        return f"ready after {self.total:.1f} s: {parts}"


def start_of(status: WorkerStatus) -> StartSample | None:
    """The times of this worker's start; None before its end, and for one that was not seen from its beginning."""
    if not (stages := took(status)):
        return None
    return StartSample(slot=status.slot, incarnation=status.incarnation, restarts=status.restarts, stages=stages)


class StartTimes:
    """The samples of one engine, the last 256 of them kept. Every method may be called from any thread."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self._samples: deque[StartSample] = deque(maxlen=_MOST)
        self._hooks: list[Callable[[StartSample], None]] = []

    def listen(self, hook: Callable[[StartSample], None]) -> None:
        """Call ``hook`` with each sample from now on, by the thread that starts workers; it returns at once."""
        self._hooks.append(hook)

    def recent(self) -> tuple[StartSample, ...]:
        """The samples that are kept, oldest first."""
        with self._lock:
            return tuple(self._samples)

    def ready(self, statuses: Iterable[WorkerStatus]) -> None:
        """These were started. A life that has its sample, or was not seen from its beginning, gives none."""
        for sample in map(start_of, statuses):
            if sample is None or not self._is_new(sample):
                continue
            _LOG.info("%s is %s", sample.slot.name, sample.words)
            for hook in self._hooks:
                _tell(hook, sample)

    def _is_new(self, sample: StartSample) -> bool:
        with self._lock:
            if any(one.incarnation.id == sample.incarnation.id for one in self._samples):
                return False
            self._samples.append(sample)
            return True


def _tell(hook: Callable[[StartSample], None], sample: StartSample) -> None:
    """Whoever listens has no part in the start."""
    try:
        hook(sample)
    except BaseException as error:
        if is_interrupt(error):
            raise
        _LOG.warning("a listener to the times of starts raised %s", in_words(error))
