"""What of a steady decode step is spent outside the model's kernels, for one request and for 64: ``make bench``.

Each line is a share of the step in percent: of the processor time that the worker's thread takes (``cpu``; others on
the machine do not change it much), and of the time that passes (``wall``: it wants a quiet machine). Outside are
Python, the gathering of inputs, sampling, messages, and what a program spends between its operators. ``step_ms`` and
its parts are medians; ``programs_ms`` is all time in the model's programs, ``dispatch_ms`` what of it is between
operators.
``PEERS_THREADS`` is the number of threads (2).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).parent / "share_run.py"
RANDOM = {"temperature": 0.8, "top_p": 0.95}


@pytest.mark.parametrize("sampling", [{}, RANDOM], ids=["greedy", "random"])
def test_share_outside_the_kernels(smollm2: Path, sampling: dict[str, float]) -> None:
    argv = [sys.executable, "-P", str(SCRIPT), "--model", str(smollm2), "--sampling", json.dumps(sampling)]
    environ = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1500, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    print()
    for text in done.stdout.splitlines():
        told = json.loads(text)
        rows = f"{told.pop('batch')} rows, {'random' if sampling else 'greedy'}"
        for kind in ("cpu", "wall"):
            line = {"figure": f"share outside the kernels, {kind}, {rows}", "ours": told.pop(kind), "unit": "percent"}
            print(json.dumps({**line, "threads": told["threads"], **(told if kind == "cpu" else {})}))
