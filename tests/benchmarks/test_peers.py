"""The engine beside others on one real model: ``make bench-peers``. See ``peers/README.md``.

Set by the environment:

- ``PEERS_HOME``: what ``peers/setup.sh`` built. Without it ours is measured alone.
- ``BENCH_WORKLOADS`` (W1,W2,W3,W4,W5), ``BENCH_RUNNERS`` (v2,v1), ``BENCH_PEERS`` (those of openvino, vllm, llamacpp
  and transformers that are there; also openvino-int8, vllm-compiled, llamacpp-q4_1 and transformers-cb).
- ``BENCH_PAIRS`` (3): processes of each, in turn; figures are their medians.
- ``BENCH_LOAD`` (0.3) and ``BENCH_WAIT`` (900): the load that is quiet enough, and seconds to wait for it.

It fails when something could not be measured, and never for what a figure is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peer_figures import FIGURES, agreement, lines
from benchmarks.peer_runs import (
    DEFAULT_PEERS,
    PEERS,
    Contender,
    CouldNotMeasure,
    Runs,
    interleave,
    ours,
    run_script,
    run_workload,
)
from benchmarks.quiet import wait_for_quiet

pytestmark = [pytest.mark.bench, pytest.mark.timeout(6 * 3600)]

WORKLOADS = os.environ.get("BENCH_WORKLOADS", "W1,W2,W3,W4,W5").split(",")
RUNNERS = os.environ.get("BENCH_RUNNERS", "v2,v1").split(",")
PAIRS = int(os.environ.get("BENCH_PAIRS", "3"))
LOAD = float(os.environ.get("BENCH_LOAD", "0.3"))
WAIT_S = float(os.environ.get("BENCH_WAIT", "900"))
IDLE_CORES = max(LOAD, 0.1)
CHECKED = "W1"
"""The workload whose answers tell which peers are measured at the same task."""


def _tell(line: Mapping[str, object]) -> None:
    print(json.dumps(line), flush=True)


@dataclass(frozen=True)
class Field:
    """Who is measured, where, and how far each one's answers are those of transformers in float32."""

    home: Path
    contenders: tuple[Contender, ...]
    heads: Mapping[str, list[list[int]]]
    agrees: Mapping[str, int]
    failed: Mapping[str, CouldNotMeasure]
    note: str | None

    @property
    def length(self) -> int:
        """Ids that are compared."""
        return min(len(head) for head in self.heads[CHECKED])

    def agreement(self, line: Mapping[str, Any]) -> int:
        """Of one run's first answer."""
        return agreement(line["head"], self.heads[line["workload"]][line["head_set"]])

    def eligible(self) -> set[str]:
        """Peers that may be called the best."""
        return {
            peer.name
            for peer in self.contenders
            if peer.bf16 and peer.name in PEERS and self.agrees[peer.name] == self.length
        }


def _home_of_ours(folder: Path, model: Path) -> Path:
    (folder / "models").mkdir()
    (folder / "models" / "smollm2-135m-bf16").symlink_to(model)
    script = Path(__file__).parent / "peers" / "make_workloads.py"
    subprocess.run([sys.executable, str(script), str(model), str(folder / "workloads.json")], check=True, timeout=300)
    return folder


def _peers(home: Path) -> list[Contender]:
    asked = os.environ.get("BENCH_PEERS")
    found = []
    for name in DEFAULT_PEERS if asked is None else [name for name in asked.split(",") if name]:
        assert name in PEERS, f"BENCH_PEERS names {name!r}; there are {', '.join(PEERS)}"
        missing = PEERS[name].missing(home)
        if missing is None:
            found.append(PEERS[name])
        elif asked is None:
            _tell({"left out": name, "missing": str(missing.relative_to(home))})
        else:
            pytest.fail(f"{name} has no {missing}: peers/setup.sh makes it")
    return found


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Field:
    print()
    assert set(WORKLOADS) <= {figure.workload for figure in FIGURES}, f"BENCH_WORKLOADS is {','.join(WORKLOADS)}"
    note, peers = None, []
    if "PEERS_HOME" in os.environ:
        home = Path(os.environ["PEERS_HOME"]).absolute()
        peers = _peers(home)
        python = home / "hf" / "bin" / "python"
    else:
        note = "ours alone; for peers set PEERS_HOME to what tests/benchmarks/peers/setup.sh built"
        home = _home_of_ours(tmp_path_factory.mktemp("home"), request.getfixturevalue("smollm2"))
        python = ours("").python(home)
    contenders = (*map(ours, RUNNERS), *peers)
    wanted = ",".join(sorted({CHECKED, *WORKLOADS}))
    heads = run_script(python, "reference.py", ["--workloads", wanted], home)[0]["heads"]
    agrees, failed = {}, {}
    for contender in contenders:
        try:
            line, _ = run_workload(contender, CHECKED, home)
        except CouldNotMeasure as error:
            failed[contender.name] = error
            continue
        agrees[contender.name] = agreement(line["head"], heads[CHECKED][line["head_set"]])
    able = tuple(contender for contender in contenders if contender.name in agrees)
    return Field(home=home, contenders=able, heads=heads, agrees=agrees, failed=failed, note=note)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_workload(workload: str, field: Field) -> None:
    wait_for_quiet(LOAD, WAIT_S)
    print()
    runs, failed = interleave(field.contenders, workload, field.home, PAIRS, IDLE_CORES, WAIT_S)
    for runner in [name for name in RUNNERS if name in runs]:
        for figure in [one for one in FIGURES if one.workload == workload]:
            values = {name: run.values(figure.key) for name, run in runs.items() if name not in RUNNERS}
            for line in lines(figure, runs[runner].values(figure.key), values, field.eligible()):
                _tell({**line, "runner": runner, **_about(field, runs, runner, line.get("against"))})
    failed = {**field.failed, **failed}
    for name, error in failed.items():
        _tell({"not measured": name, "workload": workload, "error": str(error).splitlines()[0]})
    if failed:
        pytest.fail("\n".join(map(str, failed.values())), pytrace=False)


def _about(field: Field, runs: Mapping[str, Runs], runner: str, peer: object) -> dict[str, object]:
    """What a figure is worth: versions, answers, pairs, and how quiet it was."""
    sides = {"ours": runner} | ({"peer": str(peer)} if peer is not None else {})
    about: dict[str, object] = {
        "pairs": PAIRS,
        "threads": runs[runner].lines[0]["threads"],
        "versions": {side: runs[name].lines[0]["version"] for side, name in sides.items()},
        "agreement": {side: f"{field.agrees[name]}/{field.length}" for side, name in sides.items()},
        "agreement_here": {side: min(map(field.agreement, runs[name].lines)) for side, name in sides.items()},
        "others_cores": round(max(runs[name].others for name in sides.values()), 2),
    }
    return about | ({} if field.note is None else {"note": field.note})
