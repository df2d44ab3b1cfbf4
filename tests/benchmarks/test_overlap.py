"""What steps in flight are worth: overlap on and off, and requests shared out to pipeline stages or not.

Each figure is of pairs that ran in turn, in one run. ``-k exact`` has stages of an exact length in another process;
the others have the real model, and show more of the machine.
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
PAIRS, REQUESTS, TOKENS = 3, 32, 32


def _run(script: str, *arguments: object) -> dict[str, Any]:
    argv = [sys.executable, "-P", str(HERE / script), *map(str, arguments)]
    environ = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _tell(figure: str, one: list[float], other: list[float]) -> None:
    """The first are of the engine as it is; the ratio is of the medians."""
    ratio = round(median(one) / median(other), 3)
    print(json.dumps({"figure": figure, "on": one, "off": other, "ratio": ratio, "unit": "tokens/s"}))


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize(("fixed_ms", "per_token_us"), [(5, 0), (1, 125)])
def test_stages_of_an_exact_length(stages: int, fixed_ms: float, per_token_us: float) -> None:
    rates: dict[int, list[float]] = {1: [], 0: []}
    for _ in range(PAIRS):
        for spread, own in rates.items():
            figures = _run("overlap_stages.py", REQUESTS, stages, spread, fixed_ms, per_token_us)
            own.append(figures["tokens_per_s"])
    print()
    _tell(f"{stages} stages of {fixed_ms} ms and {per_token_us} us a token, spread or not", rates[1], rates[0])


@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_overlap(smollm2: Path, executor: str) -> None:
    use, key = f"executor.use={executor}", "scheduler.overlap="
    made = _run("overlap_model.py", smollm2, REQUESTS, TOKENS, PAIRS, use, f"{key}true", "--", use, f"{key}false")
    print()
    _tell(f"executor {executor}, overlap on or off", made["one"], made["other"])


def test_stages(smollm2: Path) -> None:
    sets = ("executor.use=mp", "parallel.pipeline_parallel_size=2")
    made = _run("overlap_model.py", smollm2, REQUESTS, TOKENS, PAIRS, *sets, "--", *sets, "spread=0")
    print()
    _tell("executor mp, 2 stages, spread or not", made["one"], made["other"])
