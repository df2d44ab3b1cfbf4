"""What a step costs in the engine's process beside the device, and what a request that waits; prints one JSON line.

Usage: python scheduler_step.py RUNNING WAITING [TOKENIZER | --paced]. With the folder of a tokenizer, text is made of
the tokens. Paced, it takes as many steps as each line of its input says, and answers with a JSON list of what they took
in microseconds: two of them then take turns on a machine that changes its speed.

A turn is the core's own, whole: schedule, what the ledger notes of it, stop checks, the commit, one delta per request,
the scheduler's update, its statistics, the report to observers; and the call to a device that takes no time, with the
wait for its made-up answer. Not in it: the codec, and the way of the deltas to their readers.

A step is a turn without that call and that wait (``send`` and ``wait`` of the execution, the stand-in device in
them): schedule, commit and update, which is what the reference's ``schedule()`` and ``update_from_output()`` do.
"""

from __future__ import annotations

import gc
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from enginebay.engine.commit import Detokenizer, DetokenizerFactory, no_text
from enginebay.engine.execution import Execution
from enginebay.text import IncrementalDetokenizer, Tokenizer
from support.bench_engine import InstantDevice, asks, bench_engine

WARM, STEPS = 30, 300

T = TypeVar("T")
P = ParamSpec("P")


class Stopwatch:
    """Sums up the seconds that some functions take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function, timed."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            begun = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - begun

        return timed


class Bench:
    """A core whose device takes no time, with requests that all prefill in its first steps."""

    def __init__(self, running: int, waiting: int, detokenizer: DetokenizerFactory) -> None:
        self._workers = Stopwatch()
        Execution.send = self._workers.around(Execution.send)  # type: ignore[method-assign]  # timed
        Execution.wait = self._workers.around(Execution.wait)  # type: ignore[method-assign]  # timed
        self.core = bench_engine(running, InstantDevice, detokenizer=detokenizer).core
        wanted = asks(0, running + waiting)
        gc.collect()
        before = _resident()
        begun = time.perf_counter()
        for ask in wanted:
            self.core.add_request(ask, validated=True)
        self.add_seconds = (time.perf_counter() - begun) / len(wanted)
        self.request_bytes = (_resident() - before) / len(wanted)
        for _ in range(WARM):
            self.core.step()

    def step(self) -> tuple[float, float]:
        """Seconds of a step, and of the turn that it is part of."""
        self._workers.seconds, begun = 0.0, time.perf_counter()
        self.core.step()
        turn = time.perf_counter() - begun
        return turn - self._workers.seconds, turn


def main(running: int, waiting: int, detokenizer: DetokenizerFactory) -> None:
    bench = Bench(running, waiting, detokenizer)
    times, turns = zip(*(bench.step() for _ in range(STEPS)), strict=True)
    assert bench.core.stats().scheduler.num_running == running
    ordered = sorted(times)
    out = {
        "add_us": bench.add_seconds * 1e6,
        "step_us_median": statistics.median(times) * 1e6,
        "step_us_p99": ordered[int(STEPS * 0.99) - 1] * 1e6,
        "step_us_max": ordered[-1] * 1e6,
        "turn_us_median": statistics.median(turns) * 1e6,
        "request_bytes": bench.request_bytes,
    }
    print(json.dumps({name: round(value, 1) for name, value in out.items()}))


def paced(running: int, waiting: int) -> None:
    bench = Bench(running, waiting, no_text)
    print(json.dumps({"request_bytes": round(bench.request_bytes, 1)}), flush=True)
    for line in sys.stdin:
        print(json.dumps([round(bench.step()[0] * 1e6, 1) for _ in range(int(line))]), flush=True)
    assert bench.core.stats().scheduler.num_running == running


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _text_of(folder: Path) -> DetokenizerFactory:
    tokenizer = Tokenizer.from_folder(folder)

    def make(skip_special_tokens: bool) -> Detokenizer:
        return IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)

    return make


if __name__ == "__main__":
    sizes, more = (int(sys.argv[1]), int(sys.argv[2])), sys.argv[3:]
    if more == ["--paced"]:
        paced(*sizes)
    else:
        main(*sizes, _text_of(Path(more[0])) if more else no_text)
