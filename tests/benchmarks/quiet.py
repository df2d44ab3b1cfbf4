"""Whether the machine is left to a measurement: its load before it, and what others took while it ran."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

LOOK_S = 5.0
IDLE_STATES = (3, 4)
"""The fields idle and iowait of a line in /proc/stat."""


class NotQuiet(Exception):
    """Others kept the machine busy for as long as we were ready to wait."""


def _cpu_seconds() -> float:
    """What all processes of the machine took so far, and what a host took from it."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    ticks = sum(int(field) for place, field in enumerate(fields) if place not in IDLE_STATES)
    return ticks / os.sysconf("SC_CLK_TCK")


def _children_seconds() -> float:
    """What ended children of this process took so far, with theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def busy_cores(seconds: float = 1.0) -> float:
    """Cores that work while this process sleeps."""
    before, begin = _cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (_cpu_seconds() - before) / (time.monotonic() - begin)


def wait_for_quiet(limit: float, wait_s: float) -> None:
    """Wait until the load of the last minute is under ``limit``. Raises ``NotQuiet`` after ``wait_s``.

    For the start of a run of measurements: between two of them the last one's own load is still in the average.
    """
    deadline = time.monotonic() + wait_s
    while (load := os.getloadavg()[0]) >= limit:
        if time.monotonic() > deadline:
            raise NotQuiet(f"load {load:.2f} after {wait_s:.0f} s, and a measurement needs less than {limit}")
        print(f"waiting for a quiet machine: load {load:.2f}, to be under {limit}", file=sys.stderr, flush=True)
        time.sleep(LOOK_S)


def wait_for_idle(limit: float, wait_s: float) -> None:
    """Wait until fewer than ``limit`` cores work: what ran before has ended. Raises ``NotQuiet`` after ``wait_s``."""
    deadline = time.monotonic() + wait_s
    while (busy := busy_cores()) >= limit:
        if time.monotonic() > deadline:
            raise NotQuiet(f"{busy:.2f} cores busy after {wait_s:.0f} s, and a measurement needs less than {limit}")


class Others:
    """``with Others() as others:`` around a child process: ``cores`` that other processes took meanwhile."""

    cores = 0.0

    def __enter__(self) -> Self:
        self._begin = time.monotonic()
        self._all, self._ours = _cpu_seconds(), _children_seconds()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        others = (_cpu_seconds() - self._all) - (_children_seconds() - self._ours)
        self.cores = max(0.0, others / max(1e-3, time.monotonic() - self._begin))
