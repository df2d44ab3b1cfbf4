"""The peak memory of an engine and its workers from start to end, the KV cache in it: ``make bench``.

The cache has the blocks that the requests need. A line is the largest sum of all processes' resident memory that was
seen in 20 ms; what they share counts in each of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).parent / "memory_run.py"
LOOK_SECONDS = 0.02


def _peak(argv: list[str]) -> int:
    """Bytes."""
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    root, peak = psutil.Process(child.pid), 0
    while child.poll() is None:
        resident = 0
        with suppress(psutil.NoSuchProcess):
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    resident += process.memory_info().rss
        peak = max(peak, resident)
        time.sleep(LOOK_SECONDS)
    _, said = child.communicate()
    assert child.returncode == 0, said
    return peak


@pytest.mark.parametrize("requests", [1, 64])
@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_peak_memory(smollm2: Path, requests: int, executor: str) -> None:
    argv = [sys.executable, "-P", str(SCRIPT), "--model", str(smollm2), "--requests", str(requests)]
    argv += ["--set", f"executor.use={executor}"]
    _peak(argv)  # whatever is made once for this machine
    peaks = sorted(_peak(argv) / 1e6 for _ in range(3))
    line = {"figure": f"peak memory, {requests} requests, {executor}", "ours": round(peaks[1]), "unit": "MB"}
    print("\n" + json.dumps({**line, "least": round(peaks[0]), "most": round(peaks[-1])}))
