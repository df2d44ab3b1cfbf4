"""The part of the schedulers' suite on steps in flight: nothing is lost, nothing repeated, and the device is busy."""

from __future__ import annotations

from collections import deque
from typing import Any

from enginebay.kvcache import KVCacheManager
from enginebay.messages import ModelRunnerOutput, SchedulerOutput
from enginebay.testing._loads import make_limits, make_request, random_load
from enginebay.testing._loop import CoreLoop
from enginebay.testing._scheduler_base import LoadedScheduler, SchedulerBase, overlaps

DEVICE_STEP, HOST_STEP = 0.005, 0.001
"""Seconds, of a virtual clock, that the device takes for a step, and the core between two."""

MOST_IDLE = 0.05
"""With steps of these lengths a device that must wait for the core is idle a sixth of the time."""


class TimedLoop(CoreLoop):
    """A simulated core on a virtual clock, which knows how long its device stood idle in ``computed`` steps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.time = self.idle = 0.0
        self.computed = 0
        self._free_at: float | None = None
        self._done: deque[float] = deque()
        super().__init__(*args, **kwargs)

    def now(self) -> float:
        """Seconds of the virtual clock."""
        return self.time

    def step(self) -> SchedulerOutput:
        """One turn of the core's loop, which takes it ``HOST_STEP``."""
        self.time += HOST_STEP
        return super().step()

    @property
    def idle_share(self) -> float:
        """How much of the time the device had nothing to do, since it had something for the first time."""
        return self.idle / (self.idle + self.computed * DEVICE_STEP)

    def _execute(self, output: SchedulerOutput) -> None:
        super()._execute(output)
        if not output.num_scheduled_tokens:
            return
        self.computed += 1
        free_at = self.time if self._free_at is None else self._free_at
        start = max(self.time, free_at)
        self.idle += start - free_at
        self._free_at = start + DEVICE_STEP
        self._done.append(self._free_at)

    def _commit(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        self.time = max(self.time, self._done.popleft())
        super()._commit(output, result)


class OverlapTests(SchedulerBase):
    """For policies, which always overlap, and for whole schedulers that declare it."""

    def test_steps_in_flight_lose_and_repeat_nothing(self, loaded: LoadedScheduler) -> None:
        """OVERLAP: random loads with two steps in flight."""
        for seed in range(self.seeds):
            loop = self.loop(loaded, load := random_load(seed), depth=2)
            if not overlaps(loaded, loop):
                loop = self.loop(loaded, load)
            loop.run_load(load)

    def test_declared_overlap_keeps_the_device_busy(self, loaded: LoadedScheduler) -> None:
        """OVERLAP: what is declared is measured, with a device that takes 5 ms for a step, on a virtual clock."""

        def loop(depth: int) -> TimedLoop:
            limits = make_limits(max_num_seqs=32, max_num_batched_tokens=1024)
            return TimedLoop(*loaded, limits=limits, cache=KVCacheManager(num_blocks=640, block_size=4), depth=depth)

        timed = loop(2)
        declared = overlaps(loaded, timed)
        if not declared:
            timed = loop(1)
        timed.add(*(make_request(number, 16, max_tokens=40) for number in range(32)))
        timed.run()
        assert not declared or timed.idle_share < MOST_IDLE, (
            f"it overlaps, as it declares, and yet the device was idle {timed.idle_share:.0%} of the time: with a step "
            "in flight, and requests that need more, schedule() must not come back empty"
        )
