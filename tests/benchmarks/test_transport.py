"""The shared rings against vLLM's MessageQueue, in turn in one run: ``make bench-transport``.

PEERS names the folder with ``rpc_vllm.py``, PEERS_HOME what its ``setup.sh`` built; without them ours runs alone.
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
PAIRS = 5
MOST = 0.5
"""Of the peer's time, that ours may take."""


def _run(argv: list[str]) -> dict[str, float]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _peer() -> list[str] | None:
    if "PEERS" not in os.environ or "PEERS_HOME" not in os.environ:
        return None
    return [f"{os.environ['PEERS_HOME']}/vllm/bin/python", f"{os.environ['PEERS']}/rpc_vllm.py"]


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
        print("\nours alone; beside vLLM's: PEERS=<folder of rpc_vllm.py> PEERS_HOME=<what setup.sh built>")
    print(f"\n| workers | payload | | ours µs | peer µs | ratio |\n|---|---|---|---|---|---|   medians of {PAIRS} runs")
    ratios = []
    for name in ("small", "64KiB"):
        for figure in ("median", "p99"):
            key = f"{name}_us_{figure}"
            own = median(run[key] for run in ours)
            other = median(run[key] for run in theirs) if theirs else float("nan")
            ratios.append(own / other)
            print(f"| {workers} | {name} | {figure} | {own:.1f} | {other:.1f} | {own / other:.2f} |")
    assert not theirs or max(ratios) <= MOST


def test_idle_workers() -> None:
    run = _run([sys.executable, "-P", str(OURS), "2", "5"])
    print(f"\nidle for 5 s: the busier of 2 workers used {run['idle_share_of_a_core']:.4%} of a core")
    assert run["idle_share_of_a_core"] < 0.01
