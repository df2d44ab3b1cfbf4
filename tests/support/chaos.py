"""One round of chaos in a process of its own: an engine under load, faults drawn from a seed, one JSON line at the end.

``python -P -m support.chaos --world mp --model fake --seed 3 --faults 10 --expected FILE``, with ``tests`` on the path.
What an undisturbed engine answers is kept in FILE, by the first round of its world.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from enginebay import LLM
from enginebay.runfolder import run_root
from support.census import Census
from support.chaos_load import Load, Tally, counts, pool
from support.declared import declare
from support.fake_engine import fake_model_folder
from support.repository import ROOT

__all__ = ["WORLDS"]

WORLDS: dict[str, dict[str, int]] = {
    "mp": {},
    "tensor": {"tensor_parallel_size": 2},
    "replicas": {"data_parallel_size": 2},
}
_PATIENCE = 900.0
_MANY = 1_000_000


class Counter(logging.Handler):
    """Counts the faults that were injected, and those that had met nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.injected = self.missed = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("fault "):
            self.injected += 1
        else:
            self.missed += 1


def config(model: Path, world: str, *, fake: bool) -> dict[str, Any]:
    """An engine whose answers do not depend on what is computed together, and that waits for nothing for long."""
    runner = {"use": "chaos", "options": {"step_seconds": 0.002}} if fake else {"use": "v1"}
    return {
        "model": {"path": str(model)} | ({} if fake else {"dtype": "float32"}),
        "runner": runner,
        "executor": {"use": "mp"},
        "parallel": WORLDS[world],
        "cache": {"num_blocks": 256},
        "worker": {"threads": 1},
        "engine": {"batch_invariant": True},
        "recovery": {"max_restarts": _MANY, "max_restarts_in_all": _MANY, "failed_starts": _MANY, "longest_wait": 0},
        "deadlines": {
            "heartbeat": 0.2 if fake else 1.0,
            "step": 20 if fake else 60,
            "load_model": 60,
            "collective": 30,
        },
    }


def faults(world: str, seed: int, number: int, *, fake: bool) -> dict[str, Any]:
    """Kills and stops: every other seed of a world by calls, the others by time, also in idle moments and starts.

    A request that is there each time workers die, and has no token in between, is taken for the cause of it: the gap
    leaves all of them the time for one.
    """
    drawn: dict[str, Any] = {"seed": seed, "rate": 0.1, "per": "call", "gap": 12}
    if seed // len(WORLDS) % 2 == 1:
        drawn |= {"per": "second", "rate": 1.0, "gap": 0.5} if fake else {"per": "second", "rate": 0.2, "gap": 4}
    drawn |= {"kinds": ["kill", "stop", "stop", "stop"], "never": 0.1} if fake else {"never": 0.3}
    drawn["limit"] = number // (2 if world == "replicas" else 1)
    return {"extensions": {"faults": {"random": drawn}}}


def a_round(world: str, model: Path, seed: int, number: int, expected: Path, *, fake: bool) -> dict[str, Any]:
    """What is printed."""
    tally, counter, begun = Tally(), Counter(), time.monotonic()
    logging.getLogger("enginebay.faults").addHandler(counter)
    load, plain = Load(pool(), tally), config(model, world, fake=fake)
    if not expected.exists():
        alone = {"executor": {"use": "uni"}, "parallel": {}} if fake else {}  # its ranks compute nothing together
        with LLM(config=plain | alone) as llm:
            load.learn(llm, expected)
    load.expected = json.loads(expected.read_text())
    census, until = Census([run_root()]), time.monotonic() + _PATIENCE
    mark = {name: value for name, value in census.environment().items() if name not in os.environ}
    os.environ.update(mark)  # a descendant is found by it, wherever it went
    with LLM(config=plain | faults(world, seed, number, fake=fake)) as llm:
        load.run(llm, lambda: counter.injected + counter.missed >= number or time.monotonic() > until)
    for name in mark:
        del os.environ[name]
    leaks = left_after(census, 5.0)
    seconds = round(time.monotonic() - begun, 1)
    told = {"world": world, "seed": seed, "faults": counter.injected, "missed": counter.missed, **counts(tally)}
    return {**told, "leaks": len(leaks), "seconds": seconds, "problems": [*tally.problems, *leaks]}


def left_after(census: Census, seconds: float) -> list[str]:
    """What is left when it was given so long to go."""
    until = time.monotonic() + seconds
    while (left := census.left()) and time.monotonic() < until:
        time.sleep(0.05)
    return list(left.values())


def leave(number: int, frame: object) -> None:
    """End in good order, once: the engine is closed on the way out."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", choices=WORLDS, required=True)
    parser.add_argument("--model", default="fake", help='"fake", or a model\'s folder')
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--faults", type=int, required=True)
    parser.add_argument("--expected", type=Path, required=True)
    asked = parser.parse_args()
    fake = asked.model == "fake"
    signal.signal(signal.SIGTERM, leave)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    own = Path(tempfile.mkdtemp(prefix="eb-chaos-"))
    try:
        os.environ.update(ENGINEBAY_RUN=str(own / "run"), ENGINEBAY_STATE=str(own / "state"), HF_HUB_OFFLINE="1")
        site = declare(own / "site", {"enginebay.runners": {"chaos": "support.chaos_runner"}})
        path = [str(site), str(ROOT / "tests")]
        sys.path[:0] = path
        os.environ["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])])
        model = fake_model_folder(own / "model") if fake else Path(asked.model)
        print(json.dumps(a_round(asked.world, model, asked.seed, asked.faults, asked.expected, fake=fake)))
    finally:
        shutil.rmtree(own, ignore_errors=True)


if __name__ == "__main__":
    main()
