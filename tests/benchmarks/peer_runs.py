"""Ours and the peers as processes that measure one workload, in turn, and what their JSON lines say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.quiet import Others, wait_for_idle

SCRIPTS = Path(__file__).parent / "peers"
RUN_S = 1800
"""One process, its start and its warm-up included."""
REPEATS = {"W1": 3}
"""Timed runs in one process; W1's are short."""


class CouldNotMeasure(Exception):
    """A process failed, or there is no environment for it."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A script with its interpreter; ``needs`` are files in the home. Without an environment it is run by ours."""

    name: str
    script: str
    arguments: tuple[str, ...]
    environment: str | None = None
    needs: tuple[str, ...] = ()
    bf16: bool = True

    def python(self, home: Path) -> Path:
        """The interpreter."""
        return Path(sys.executable) if self.environment is None else home / self.environment / "bin" / "python"

    def missing(self, home: Path) -> Path | None:
        """A file that it cannot run without."""
        wanted = [self.python(home), *(home / need for need in self.needs)]
        return next((path for path in wanted if not path.exists()), None)


def ours(runner: str) -> Contender:
    """enginebay with this runner."""
    return Contender(name=runner, script="run_enginebay.py", arguments=("--runner", runner, "--precision", "bf16"))


_LLAMA = ("llamacpp/bin/llama-server",)
PEERS = {
    peer.name: peer
    for peer in (
        Contender(
            name="openvino",
            environment="openvino",
            script="run_openvino.py",
            arguments=("--precision", "ov-fp32", "--infer", "bf16"),
            needs=("models/smollm2-135m-ov-fp32/openvino_model.bin",),
        ),
        Contender(
            name="openvino-int8",
            environment="openvino",
            script="run_openvino.py",
            arguments=("--precision", "ov-int8"),
            needs=("models/smollm2-135m-ov-int8/openvino_model.bin",),
            bf16=False,
        ),
        Contender(name="vllm", environment="vllm", script="run_vllm.py", arguments=("--precision", "bf16")),
        Contender(
            name="vllm-compiled",
            environment="vllm",
            script="run_vllm.py",
            arguments=("--precision", "bf16", "--compile"),
        ),
        Contender(
            name="llamacpp",
            script="run_llamacpp.py",
            arguments=("--precision", "bf16"),
            needs=(*_LLAMA, "models/gguf/smollm2-135m-bf16.gguf"),
        ),
        Contender(
            name="llamacpp-q4_1",
            script="run_llamacpp.py",
            arguments=("--precision", "q4_1"),
            needs=(*_LLAMA, "models/gguf/smollm2-135m-q4_1.gguf"),
            bf16=False,
        ),
        Contender(name="transformers", environment="hf", script="run_hf.py", arguments=("--precision", "bf16")),
        Contender(
            name="transformers-cb",
            environment="hf",
            script="run_hf.py",
            arguments=("--precision", "bf16", "--mode", "cb"),
        ),
    )
}
DEFAULT_PEERS = ("openvino", "vllm", "llamacpp", "transformers")


@dataclass
class Runs:
    """The lines of one contender's processes, and the most cores that others took while one of them ran."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    others: float = 0.0

    def values(self, key: str) -> list[float]:
        """One figure, by process."""
        return [float(line[key]) for line in self.lines]


def run_script(python: Path, script: str, arguments: Sequence[str], home: Path) -> tuple[dict[str, Any], float]:
    """The JSON line that it prints last, and the cores that others took meanwhile. Raises ``CouldNotMeasure``."""
    environ = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    environ["PEERS_HOME"] = str(home)
    argv = [str(python), str(SCRIPTS / script), *arguments]
    with Others() as others:
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
        try:
            out, err = child.communicate(timeout=RUN_S)
        except BaseException as error:
            for process in (*psutil.Process(child.pid).children(recursive=True), child):
                process.kill()
            child.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise CouldNotMeasure(f"{' '.join(argv)} did not end within {RUN_S} s") from None
            raise
    if child.returncode != 0 or not out.strip():
        raise CouldNotMeasure(f"{' '.join(argv)} ended with {child.returncode}:\n{err[-3000:]}")
    return dict(json.loads(out.splitlines()[-1])), others.cores


def run_workload(contender: Contender, workload: str, home: Path) -> tuple[dict[str, Any], float]:
    """One process of it."""
    arguments = ["--workload", workload, *contender.arguments, "--repeats", str(REPEATS.get(workload, 1))]
    return run_script(contender.python(home), contender.script, arguments, home)


def interleave(
    contenders: Sequence[Contender], workload: str, home: Path, pairs: int, limit: float, wait_s: float
) -> tuple[dict[str, Runs], dict[str, CouldNotMeasure]]:
    """Each of them ``pairs`` times, in turn, each time beginning with another; one that failed is left out at once."""
    runs = {contender.name: Runs() for contender in contenders}
    failed: dict[str, CouldNotMeasure] = {}
    for number in range(pairs):
        turn = number % len(contenders)
        for contender in (*contenders[turn:], *contenders[:turn]):
            if contender.name in failed:
                continue
            wait_for_idle(limit, wait_s)
            try:
                line, others = run_workload(contender, workload, home)
            except CouldNotMeasure as error:
                failed[contender.name] = error
                del runs[contender.name]
                continue
            runs[contender.name].lines.append(line)
            runs[contender.name].others = max(runs[contender.name].others, others)
    return runs, failed
