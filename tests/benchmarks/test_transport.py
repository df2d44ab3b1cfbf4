"""The shared rings against vLLM's MessageQueue, in turn in one run: ``make bench-transport``.

PEERS_HOME names what ``peers/setup.sh`` built; without it ours runs alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

OURS = Path(__file__).parent / "transport_round_trip.py"
PAIRS = 7


def _run(argv: list[str]) -> dict[str, float]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _peer() -> list[str] | None:
    if "PEERS_HOME" not in os.environ:
        return None
    return [f"{os.environ['PEERS_HOME']}/vllm/bin/python", str(OURS.parent / "peers" / "rpc_vllm.py")]


@pytest.mark.parametrize("workers", [1, 2])
def test_round_trip(workers: int) -> None:
    peer = _peer()
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for _ in range(PAIRS):
        ours.append(_run([sys.executable, "-P", str(OURS), str(workers)]))
        if peer is not None:
            theirs.append(_run([*peer, str(workers)]))
    if peer is None:
        print("\nours alone; beside vLLM's: PEERS_HOME=<what tests/benchmarks/peers/setup.sh built>")
    print()
    for name in ("small", "64KiB"):
        for figure in ("median", "p99"):
            own = median(run[f"{name}_us_{figure}"] for run in ours)
            what = f"round trip, workers: {workers}, {name}, {figure}"
            line: dict[str, object] = {"figure": what, "ours": round(own, 1)}
            if theirs:
                other = median(run[f"{name}_us_{figure}"] for run in theirs)
                line |= {"peer": round(other, 1), "ratio": round(own / other, 2)}
            print(json.dumps({**line, "unit": "us", "runs": PAIRS}))


def test_idle_workers() -> None:
    run = _run([sys.executable, "-P", str(OURS), "2", "5"])
    figure = {"figure": "idle, the busier of 2 workers, 5 s", "ours": run["idle_share_of_a_core"], "unit": "cores"}
    print(f"\n{json.dumps(figure)}")
