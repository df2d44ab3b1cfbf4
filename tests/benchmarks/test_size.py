"""Decoding speed against batch and context, as a table and a plot: ``make bench-size``.

Writes ``runner-v2-size.md`` and ``runner-v2-size.svg`` to ``docs``. Set by the environment: ``BENCH_BATCHES``,
``BENCH_CONTEXTS``, ``BENCH_TOKENS`` (batch times context, at most: it decides the memory), ``BENCH_RUNNER`` (v2),
``BENCH_DOCS`` (another folder), ``PEERS_THREADS`` (2), and ``BENCH_LOAD`` and ``BENCH_WAIT`` as in ``bench-peers``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.quiet import wait_for_quiet
from benchmarks.size_plot import plot, table
from support.repository import ROOT

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3 * 3600)]

SCRIPT = Path(__file__).parent / "size_run.py"
BATCHES = os.environ.get("BENCH_BATCHES", "1,2,4,8,16,32,64,128,256")
CONTEXTS = os.environ.get("BENCH_CONTEXTS", "128,256,512,1024,2048,4096")
TOKENS = os.environ.get("BENCH_TOKENS", "32768")
RUNNER = os.environ.get("BENCH_RUNNER", "v2")
THREADS = os.environ.get("PEERS_THREADS", "2")
DOCS = Path(os.environ.get("BENCH_DOCS", ROOT / "docs"))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "an unnamed processor"


def test_speed_by_size(smollm2: Path) -> None:
    wait_for_quiet(float(os.environ.get("BENCH_LOAD", "0.3")), float(os.environ.get("BENCH_WAIT", "900")))
    argv = [sys.executable, "-P", str(SCRIPT), "--model", str(smollm2), "--runner", RUNNER]
    argv += ["--batches", BATCHES, "--contexts", CONTEXTS, "--tokens", TOKENS]
    environ = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    speeds: dict[tuple[int, int], float] = {}
    print()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environ) as child:
        assert child.stdout is not None
        for text in child.stdout:
            cell = json.loads(text)
            speeds[cell["batch"], cell["context"]] = cell["tok_s"]
            line = {"figure": f"decode, batch {cell['batch']}, context {cell['context']}", "ours": cell["tok_s"]}
            line |= {"unit": "tokens/s", "ours_spread": cell["tok_s_spread"], "step_ms": cell["step_ms"]}
            print(json.dumps({**line, "runner": RUNNER, "threads": int(THREADS)}), flush=True)
    assert child.returncode == 0, f"the measuring process ended with {child.returncode}"
    _write(speeds)


def _write(speeds: dict[tuple[int, int], float]) -> None:
    name = f"runner-{RUNNER}-size"
    title = f"Decoding of SmolLM2-135M, bf16, runner {RUNNER}, {THREADS} threads"
    shown = table(speeds)
    print(f"\n{shown}")
    (DOCS / f"{name}.svg").write_text(plot(speeds, title))
    told = f"{_processor()}, torch {version('torch')}, enginebay {version('enginebay')}"
    (DOCS / f"{name}.md").write_text(
        f"# {title}\n\nTokens per second, by batch (downwards) and context (across), as `make bench-size` wrote them\n"
        f"on {datetime.now(UTC):%Y-%m-%d}: {told}.\nA dash: batch times context is above {int(TOKENS):,}.\n\n"
        f"![Tokens per second against batch]({name}.svg)\n\n{shown}"
    )
