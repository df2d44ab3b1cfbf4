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
from typing import Any

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3000)]

HERE = Path(__file__).parent
PAIRS = 5
SIZES = ((256, 0), (256, 10_000), (32, 0))
"""Requests that run, and that wait."""
TURNS, TURN = 60, 25
"""Pairs of turns, and steps of each turn, of two cores that are compared."""


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


class _Paced:
    """A core in a process of its own that steps when it is told to."""

    def __init__(self, running: int, waiting: int) -> None:
        argv = [sys.executable, "-P", str(HERE / "scheduler_step.py"), str(running), str(waiting), "--paced"]
        environ = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)
        self.request_bytes = float(self._answer()["request_bytes"])

    def step(self, count: int) -> list[float]:
        assert self._process.stdin is not None
        print(count, file=self._process.stdin, flush=True)
        return [float(one) for one in self._answer()]

    def close(self) -> None:
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def test_a_long_waiting_line() -> None:
    """The two take turns, and each pair of turns is compared: a slow state of the machine is then slow for both."""
    few, many = _Paced(256, 100), _Paced(256, 100_000)
    short: list[list[float]] = []
    long: list[list[float]] = []
    for turn in range(TURNS):
        for core, found in ((few, short), (many, long)) if turn % 2 else ((many, long), (few, short)):
            found.append(core.step(TURN))
    for core in (few, many):
        core.close()
    print()
    ratios = sorted(median(b) / median(a) for a, b in zip(short, long, strict=True))
    ours, other = median(median(turn) for turn in long), median(median(turn) for turn in short)
    figure = "median step: 100,000 waiting against 100"
    line = {"figure": figure, "ours": round(ours, 1), "with 100": round(other, 1), "ratio": round(median(ratios), 3)}
    quartiles = [round(ratios[len(ratios) // 4], 3), round(ratios[-len(ratios) // 4], 3)]
    print(json.dumps({**line, "ratio's quartiles": quartiles, "unit": "us"}))
    for name, share in (("p99", 0.99), ("longest", 1.0)):
        ours, other = (_quantile([one for turn in side for one in turn], share) for side in (long, short))
        line = {
            "figure": f"{name} step: 100,000 waiting against 100",
            "ours": round(ours, 1),
            "with 100": round(other, 1),
        }
        print(json.dumps({**line, "ratio": round(ours / other, 3), "unit": "us"}))
    _tell("memory of a waiting request, its prompt left out", many.request_bytes, "bytes")


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[max(0, int(len(values) * share) - 1)]


def test_overlap() -> None:
    print()
    for depth in (1, 2):
        runs = [_ours("overlap.py", 256, depth) for _ in range(3)]
        for name, unit in (("idle_percent", "%"), ("step_ms", "ms")):
            _tell(f"{name}: steps of 5 ms, 256 running, depth {depth}", median(run[name] for run in runs), unit)
