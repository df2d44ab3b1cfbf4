"""What a step, a request and a waiting line cost, and how long a device idles: ``make bench-scheduler``.

PEERS_HOME names what ``peers/setup.sh`` built: vLLM's scheduler then runs in turn with ours, in the same run; without
it ours runs alone.

What vLLM's figure holds is schedule and update: stop checks, statistics and one output per request, grouped by client.
Ours is the core's turn without the call to the workers and the wait for them (``scheduler_step.py`` says what is in
it), which holds the same and the ledger's commit, the observers' report and the step's marks; the whole turn, with a
device that takes no time, stands below it. Neither turns tokens into text, as vLLM does that in its front end; what
it costs us in the core is a line of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3000)]

HERE = Path(__file__).parent
PAIRS = 5
SIZES = ((256, 0), (256, 10_000), (32, 0))
"""Requests that run, and that wait."""


def _run(argv: list[str]) -> dict[str, float]:
    environ = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _ours(script: str, *arguments: object) -> dict[str, float]:
    return _run([sys.executable, "-P", str(HERE / script), *map(str, arguments)])


def _peer() -> list[str] | None:
    if "PEERS_HOME" not in os.environ:
        print("\nours alone; beside vLLM's: PEERS_HOME=<what tests/benchmarks/peers/setup.sh built>")
        return None
    return [f"{os.environ['PEERS_HOME']}/vllm/bin/python", str(HERE / "peers" / "sched_vllm.py")]


def _tell(figure: str, ours: float, unit: str, peer: float | None = None) -> None:
    line: dict[str, object] = {"figure": figure, "ours": round(ours, 1)}
    if peer is not None:
        line |= {"peer": round(peer, 1), "ratio": round(ours / peer, 3)}
    print(json.dumps({**line, "unit": unit}))


@pytest.mark.parametrize(("running", "waiting"), SIZES)
def test_step(running: int, waiting: int) -> None:
    peer = _peer()
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for _ in range(PAIRS):
        ours.append(_ours("scheduler_step.py", running, waiting))
        if peer is not None:
            theirs.append(_run([*peer, str(running), str(waiting)]))
    print()
    figures = [("step_us_median", "step"), ("step_us_p99", "step, p99")]
    if running + waiting >= 256:  # the mean of fewer is mostly the first one's
        figures.append(("add_us", "adding a request"))
    for name, what in figures:
        other = median(run[name] for run in theirs) if theirs else None
        _tell(f"{what}, {running} running, {waiting} waiting", median(run[name] for run in ours), "us", other)
    other = median(run["step_us_median"] for run in theirs) if theirs else None
    turn = f"turn, call of an instant device in it, {running} running, {waiting} waiting"
    _tell(turn, median(run["turn_us_median"] for run in ours), "us", other)


def test_step_with_text(smollm2: Path) -> None:
    plain, text = [], []
    for _ in range(PAIRS):
        plain.append(_ours("scheduler_step.py", 256, 0)["step_us_median"])
        text.append(_ours("scheduler_step.py", 256, 0, smollm2)["step_us_median"])
    print()
    _tell("text of a step's tokens, 256 running", median(text) - median(plain), "us")


def test_a_long_waiting_line() -> None:
    few, many = [], []
    for _ in range(PAIRS):
        few.append(_ours("scheduler_step.py", 256, 100))
        many.append(_ours("scheduler_step.py", 256, 100_000))
    print()
    for name in ("step_us_median", "step_us_p99", "step_us_max"):
        short, long = median(run[name] for run in few), median(run[name] for run in many)
        print(
            json.dumps(
                {
                    "figure": f"{name}: 100,000 waiting against 100",
                    "ours": round(long, 1),
                    "with 100": round(short, 1),
                    "ratio": round(long / short, 3),
                    "unit": "us",
                }
            )
        )
    _tell("memory of a waiting request, its prompt left out", median(run["request_bytes"] for run in many), "bytes")


def test_overlap() -> None:
    print()
    for depth in (1, 2):
        runs = [_ours("overlap.py", 256, depth) for _ in range(3)]
        for name, unit in (("idle_percent", "%"), ("step_ms", "ms")):
            _tell(f"{name}: steps of 5 ms, 256 running, depth {depth}", median(run[name] for run in runs), unit)
