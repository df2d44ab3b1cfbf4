"""How long a device is idle between steps of an exact length, under the whole engine loop; prints one JSON line.

Usage: python overlap.py RUNNING DEPTH [MILLISECONDS]. Idle is the time between the end of a step and the moment at
which the next one had been sent, as a share of all time. The device is another process, as workers are.
"""

from __future__ import annotations

import gc
import json
import sys
import time

from enginebay.engine.loop import Add, EngineLoop, Stop
from enginebay.interfaces import Executor, ExecutorContext, NoOptions
from support.bench_engine import PacedDevice, Reader, asks, bench_engine

WARM_SECONDS, SECONDS = 1.0, 5.0


def main(running: int, depth: int, seconds: float) -> None:
    devices: list[PacedDevice] = []

    def make(context: ExecutorContext[NoOptions]) -> Executor[NoOptions]:
        devices.append(PacedDevice(context, seconds))
        return devices[0]

    loop = EngineLoop(bench_engine(running, make, depth=depth).core)
    readers = [Reader() for _ in range(running)]
    loop.start()
    for ask, reader in zip(asks(0, running), readers, strict=True):
        loop.send(Add(ask=ask, sink=reader, operation="text_completion"))
    time.sleep(WARM_SECONDS)
    gc.collect()
    (device,) = devices
    idle, steps, begun = device.idle, device.num_steps, time.monotonic()
    time.sleep(SECONDS)
    idle, steps, taken = device.idle - idle, device.num_steps - steps, time.monotonic() - begun
    assert all(reader.num_deltas and reader.failure is None for reader in readers), "a request stands still"
    loop.send(Stop())
    assert loop.join(30), "the loop does not end"
    print(json.dumps({"idle_percent": round(100 * idle / taken, 2), "step_ms": round(1e3 * taken / steps, 3)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1e3 if len(sys.argv) > 3 else 0.005)
