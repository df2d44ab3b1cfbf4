"""Tokens a second of a core over pipeline stages of an exact length, in another process; prints one JSON line.

Usage: python overlap_stages.py RUNNING STAGES SPREAD MILLISECONDS MICROSECONDS. Each stage takes so many milliseconds
for a step and so many microseconds more for each token of it. SPREAD 0: the scheduler is not told of the stages.
"""

from __future__ import annotations

import json
import sys
import time

from enginebay.engine.loop import Add, EngineLoop, Stop
from enginebay.interfaces import Executor, ExecutorContext, NoOptions
from support.bench_engine import PacedDevice, Reader, asks, bench_engine
from support.staged_device import Stages

WARM_SECONDS, SECONDS = 2.0, 4.0


def main(running: int, stages: int, spread: bool, seconds: float, per_token: float) -> None:
    devices: list[PacedDevice] = []

    def make(context: ExecutorContext[NoOptions]) -> Executor[NoOptions]:
        devices.append(PacedDevice(context, seconds, Stages(stages, per_token)))
        return devices[0]

    engine = bench_engine(running, make, depth=stages + 1, num_stages=stages if spread else 1)
    loop = EngineLoop(engine.core)
    readers = [Reader() for _ in range(running)]
    loop.start()
    for ask, reader in zip(asks(0, running), readers, strict=True):
        loop.send(Add(ask=ask, sink=reader, operation="text_completion"))
    time.sleep(WARM_SECONDS)
    (device,) = devices
    tokens, idle, begun = sum(reader.num_deltas for reader in readers), device.idle, time.monotonic()
    time.sleep(SECONDS)
    tokens, idle = sum(reader.num_deltas for reader in readers) - tokens, device.idle - idle
    taken = time.monotonic() - begun
    assert all(reader.num_deltas and reader.failure is None for reader in readers), "a request stands still"
    loop.send(Stop())
    assert loop.join(30), "the loop does not end"
    print(json.dumps({"tokens_per_s": round(tokens / taken, 1), "idle_percent": round(100 * idle / taken, 1)}))


if __name__ == "__main__":
    running, stages, spread = map(int, sys.argv[1:4])
    main(running, stages, bool(spread), float(sys.argv[4]) / 1e3, float(sys.argv[5]) / 1e6)
