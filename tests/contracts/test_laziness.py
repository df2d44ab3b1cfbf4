"""What starts nothing stays light: asked in fresh processes, by the list of modules that were imported."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "ray", "zmq", "vllm", "opentelemetry.sdk")

PROBE = """
import json, sys
{code}
print("\\nMODULES", json.dumps(sorted(set({heavy}) & set(sys.modules))), file=sys.stderr)
"""

COMMAND = """
from enginebay.cli import main
try:
    main({argv})
except SystemExit as end:
    assert end.code == {exit_code}, end.code
"""


def heavy_modules(code: str, cwd: Path) -> list[str]:
    """Which of the heavy modules ``code`` imports, asked in a fresh process that must end well."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROBE.format(code=code, heavy=HEAVY)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    loaded: list[str] = json.loads(done.stderr.rsplit("MODULES ", 1)[1])
    return loaded


def test_the_probe_sees_what_is_imported(tmp_path: Path) -> None:
    assert heavy_modules("import zmq", tmp_path) == ["zmq"]


@pytest.mark.parametrize(
    "code",
    [
        "import enginebay",
        "from enginebay import SamplingParams, FinishReason, RequestOutput, EnginebayError, API_VERSION",
        "import enginebay.interfaces, enginebay.hookspecs, enginebay.messages, enginebay.runtime, enginebay.tracing",
        "import enginebay.plugins, enginebay.config, enginebay.scheduling, enginebay.kvcache, enginebay.text",
        "import enginebay.models, enginebay.worker, enginebay.transport, enginebay.telemetry, enginebay.graph",
        "import enginebay_external_launcher.plugin, enginebay_mp.plugin, enginebay_ray.plugin",
        "import enginebay_uni.plugin, enginebay_runner_v1.plugin, enginebay_fcfs.plugin",
        "import enginebay_fair.plugin, enginebay_priority.plugin",
        """
from enginebay.config import TelemetryConfig
from enginebay.telemetry import setup
setup(TelemetryConfig(), role="engine").shutdown()
""",
    ],
)
def test_imports_stay_light(code: str, tmp_path: Path) -> None:  # P9
    assert heavy_modules(code, tmp_path) == []


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["--version"],
        ["generate", "--help"],
        ["chat", "--help"],
        ["graph", "--help"],
        ["up", "--help"],
        ["stop", "--help"],
        ["trace", "--help"],
        ["plugins"],
        ["describe", "executor", "uni"],
        ["describe", "executor", "ray"],
        ["describe", "runner", "v1"],
        ["describe", "scheduler", "fcfs"],
        ["config", "schema"],
        ["config", "from-vllm", "--", "vllm", "serve", "m", "--seed", "1"],
        ["model", "list"],
    ],
    ids=" ".join,
)
def test_commands_that_start_nothing_stay_light(argv: list[str], tmp_path: Path) -> None:  # P9
    assert heavy_modules(COMMAND.format(argv=argv, exit_code=0), tmp_path) == []


def test_check_stays_light(smollm2: Path, tmp_path: Path) -> None:  # P9
    argv = ["check", "--set", f"model.path={smollm2}"]
    assert heavy_modules(COMMAND.format(argv=argv, exit_code=0), tmp_path) == []


@pytest.mark.bench
def test_import_time(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", "import enginebay"]
    subprocess.run(command, check=True, cwd=tmp_path)  # so that bytecode is there
    times = []
    for _ in range(10):
        start = time.perf_counter()
        subprocess.run(command, check=True, cwd=tmp_path)
        times.append(time.perf_counter() - start)
    print(f"\nimport enginebay in a fresh process: best {min(times):.3f} s, worst {max(times):.3f} s of 10")
    assert min(times) < 0.3
