"""What a decode step takes while other processes want the same cores: ``make bench``.

Each line is the median step of one request, in milliseconds, with so many busy processes beside it; ``alone`` is that
of the same round without any, and ``ratio`` what the others cost. A fair share of 2 cores for 2 threads beside one busy
process is two thirds of each.
``PEERS_THREADS`` is the number of threads (2).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).parent / "share_run.py"
ROUNDS = 3


@contextmanager
def _busy() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _step_ms(model: Path, neighbours: int) -> float:
    argv = [sys.executable, "-P", str(SCRIPT), "--model", str(model), "--batches", "1"]
    environ = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with ExitStack() as stack:
        for _ in range(neighbours):
            stack.enter_context(_busy())
        done = subprocess.run(argv, capture_output=True, text=True, timeout=500, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout)["step_ms"])


def test_a_step_beside_busy_processes(smollm2: Path) -> None:
    rounds = [[_step_ms(smollm2, neighbours) for neighbours in (0, 1, 2)] for _ in range(ROUNDS)]
    alone, *others = (median(figures) for figures in zip(*rounds, strict=True))
    print()
    for neighbours, ours in enumerate(others, start=1):
        figure = f"median step of one request beside {neighbours} busy"
        line = {"figure": figure, "ours": ours, "alone": alone, "ratio": round(ours / alone, 2), "unit": "ms"}
        print(json.dumps({**line, "rounds": [one[neighbours] for one in rounds]}))
