"""What the ledger, the heartbeats and the statuses take of a step's own work, by profile; prints one JSON line.

Usage: python watching_profile.py RUNNING. Microseconds of a step under Python's profiler, which makes each call dearer
than it is: what is printed is rather too much. Builtins count for the module that calls them. The device is another
process that takes 5 ms for a step, so that answers are waited for.
"""

from __future__ import annotations

import cProfile
import gc
import json
import pstats
import sys
from pathlib import Path
from typing import Any

import enginebay
from enginebay.interfaces import Executor, ExecutorContext, NoOptions
from support.bench_engine import PacedDevice, asks, bench_engine

WARM, STEPS, DEVICE_SECONDS = 30, 300, 0.005
CORE = Path(enginebay.__file__).parent
PARTS = {
    "ledger": ("engine/ledger.py",),
    "heartbeat": ("engine/lookout.py", "engine/verdicts.py", "engine/watch.py"),
    "status": ("engine/roster.py", "engine/supervision.py", "engine/isolation.py", "engine/suspicion.py", "status/"),
}


def part_of(file: str) -> str | None:
    """The part that a module belongs to."""
    path = Path(file)
    if not path.is_relative_to(CORE):
        return None
    name = path.relative_to(CORE).as_posix()
    return next((part for part, names in PARTS.items() if name.startswith(names)), None)


def main(running: int) -> None:
    def make(context: ExecutorContext[NoOptions]) -> Executor[NoOptions]:
        return PacedDevice(context, DEVICE_SECONDS)

    core = bench_engine(running, make).core
    for ask in asks(0, running):
        core.add_request(ask, validated=True)
    for _ in range(WARM):
        core.step()
    gc.collect()
    profile = cProfile.Profile()
    with profile:
        for _ in range(STEPS):
            core.step()
    assert core.stats().scheduler.num_running == running
    core.stop()
    stats: Any = pstats.Stats(profile)
    seconds, calls = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0)
    for (file, _, _), (_, count, own, _, callers) in stats.stats.items():
        if file != "~":
            shares = [(file, count, own)]
        else:
            shares = [(caller[0], said[0], said[2]) for caller, said in callers.items()]
        for where, count, own in shares:
            if (part := part_of(where)) is not None:
                seconds[part] += own
                calls[part] += count
    told = {f"{part}_us": round(1e6 * one / STEPS, 1) for part, one in seconds.items()}
    print(json.dumps({**told, **{f"{part}_calls": round(one / STEPS, 1) for part, one in calls.items()}}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
