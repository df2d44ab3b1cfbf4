"""How long a recovery takes, part by part, and what being ready for one costs: ``make bench-recovery``.

A worker over a real model whose KV cache of 2 GiB has been written to is killed while it answers requests. With a
second replica the requests of the lost one are moved to it; what its own see of that is told beside.
BENCH_KILLS says how often a worker is killed, and BENCH_PAIRS how many pairs of turns the two engines have of which one
has neither statuses nor heartbeats: 10 each unless set.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3000)]

HERE = Path(__file__).parent
KILLS = int(os.environ.get("BENCH_KILLS", "10"))
PAIRS = int(os.environ.get("BENCH_PAIRS", "10"))
RUNNING, BESIDE = 256, 16
"""Requests that run for the profile, and for what two engines answer in turn."""
PARTS = {
    "ended": "from the kill until the kernel tells of the end, as part of detection",
    "detection": "from the kill to the begin of the recovery",
    "reclaim": "until nothing of the old worker is left",
    "hello": "from the spawn to HELLO",
    "imports": "imports behind HELLO",
    "device": "device init",
    "weights": "weights",
    "warm_up": "warm-up",
    "requeue": "requests queued again",
    "other": "all else until then",
    "sum": "detection, reclaim, spawn to HELLO and requeue",
    "whole": "from the kill until the requests are queued again",
    "first_token": "from the kill to the first token after it",
}


def _run(script: str, *arguments: object) -> list[dict[str, Any]]:
    """Its lines; what it says beside is passed on."""
    argv = [sys.executable, "-P", str(HERE / script), *map(str, arguments)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=2500, check=False, env=environ)
    assert done.returncode == 0, done.stdout
    return [json.loads(line) for line in done.stdout.splitlines()]


def _tell(figure: str, values: list[float], unit: str = "ms", scale: float = 1e3) -> None:
    ordered = sorted(scale * one for one in values)
    p99 = ordered[max(0, -(-len(ordered) * 99 // 100) - 1)] if ordered else None
    line = {"p50": round(median(ordered), 1) if ordered else None, "p99": p99 and round(p99, 1), "of": len(ordered)}
    print(json.dumps({"figure": figure, **line, "unit": unit}))


def _killed(model: Path, replicas: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    *kills, end = _run("recovery_run.py", "--model", model, "--kills", KILLS, "--replicas", replicas)
    assert len(kills) == KILLS
    print()
    return kills, end


def test_one_worker(smollm2: Path) -> None:
    kills, end = _killed(smollm2, 1)
    for name, words in PARTS.items():
        _tell(f"recovery, {name}: {words}", [one[name] for one in kills])
    for name in kills[0]["memory"]:
        _tell(f"memory of a worker, {name}", [one["memory"][name] for one in kills], "MiB", 2**-20)
    _errors(end)


def test_a_second_replica(smollm2: Path) -> None:
    kills, end = _killed(smollm2, 2)
    stood = [one for kill in kills for one in kill["waited"]]
    _tell("two replicas, stall of moved requests", stood)
    _tell("two replicas, stall of the other one's requests", [one for kill in kills for one in kill["went_on"]])
    print(json.dumps({"figure": "two replicas, requests moved", "ours": sum(kill["moved"] for kill in kills)}))
    _tell("two replicas, detection", [one["detection"] for one in kills])
    _errors(end)


def _errors(end: dict[str, Any]) -> None:
    print(json.dumps({"figure": "requests that failed", "ours": len(end["errors"]), "of": end["requests"]}))
    assert not end["errors"], end["errors"]


def test_what_watching_costs_by_profile(smollm2: Path) -> None:
    (parts,) = _run("watching_profile.py", RUNNING)
    (step,) = _run("watching_run.py", "--model", smollm2, "--requests", RUNNING, "--alone")
    print()
    whole = 0.0
    for part in ("ledger", "heartbeat", "status"):
        taken = parts[f"{part}_us"]
        whole += taken
        line = {"figure": f"{part}, {RUNNING} running", "ours": taken, "calls": parts[f"{part}_calls"]}
        print(json.dumps({**line, "unit": "us of a step"}))
    share = {"ours": round(whole / step["step"] / 1e4, 3), "step_ms": round(1e3 * step["step"], 1)}
    print(json.dumps({"figure": f"all three, share of a step, {RUNNING} running", **share, "unit": "%"}))


def test_with_and_without_watching(smollm2: Path) -> None:
    """Half of the pairs with each of the two engines as the older one, which is slower whatever it does."""
    half = -(-PAIRS // 2)
    asked = ("watching_run.py", "--model", smollm2, "--requests", BESIDE, "--pairs", half)
    orders = [_run(*asked), _run(*asked, "--plain-first")]
    by_order = [sorted(one["with"] / one["without"] for one in pairs) for pairs in orders]
    middle = [median(ratios) for ratios in by_order]
    line = {
        "figure": "statuses and heartbeats against none",
        "ours": round(median(one["with"] for pairs in orders for one in pairs), 3),
        "without": round(median(one["without"] for pairs in orders for one in pairs), 3),
        "ratio": round(sqrt(middle[0] * middle[1]), 4),
    }
    spread = {
        name: [round(one, 4) for one in (ratios[0], median(ratios), ratios[-1])]
        for name, ratios in zip(("it is older", "it is younger"), by_order, strict=True)
    }
    print("\n" + json.dumps({**line, "least, median, most where": spread, "pairs": 2 * half, "unit": "s"}))
