"""Rounds of chaos until so many faults were injected: ``make chaos``. An interrupted run goes on with its next seed.

``python -P -m support.chaos_soak --faults 100``, with ``tests`` on the path. The last line is one of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from support.chaos import WORLDS
from support.repository import ROOT

__all__ = ["NUMBERS", "run_round"]

NUMBERS: Final = ("faults", "missed", "requests", "lost", "duplicated", "different", "leaks")
_BAD: Final = ("lost", "duplicated", "different", "leaks")
_SECONDS: Final = 1200.0
_LEAVE_WITHIN: Final = 20.0


def start_round(world: str, model: str, seed: int, faults: int, expected: Path, log: Path) -> subprocess.Popen[str]:
    """A round as a process; it prints its result."""
    argv = ["--world", world, "--model", model, "--seed", str(seed), "--faults", str(faults)]
    path = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "support.chaos", *argv, "--expected", str(expected)],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def end_round(process: subprocess.Popen[str], log: Path, seconds: float) -> dict[str, Any]:
    """Its result; raises ``RuntimeError`` with the end of its log when it has none. What interrupts this ends it."""
    try:
        said = process.communicate(timeout=seconds)[0]
        told: dict[str, Any] = json.loads(said.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, json.JSONDecodeError) as error:
        raise RuntimeError(f"{type(error).__name__}; the end of {log}:\n" + log.read_text()[-3000:]) from None
    finally:
        process.terminate()  # it takes its workers and its folder with it
        try:
            process.communicate(timeout=_LEAVE_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    return told


def run_round(world: str, model: str, seed: int, faults: int, folder: Path) -> dict[str, Any]:
    """One round from its start to its end."""
    log = folder / f"round-{seed}-{world}.log"
    return end_round(start_round(world, model, seed, faults, folder / f"{world}.json", log), log, _SECONDS)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--model", default="tiny", help='"tiny", "fake", or a model\'s folder')
    parser.add_argument("--state", type=Path, default=Path(".chaos"), help="folder of what is needed to go on")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--per-round", type=int, default=10, help="faults that one engine meets; an even number")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    asked.state.mkdir(parents=True, exist_ok=True)
    file = asked.state / "state.json"
    state = {"model": asked.model, "seed": asked.seed, "bad": [], "seconds": 0.0, **dict.fromkeys(NUMBERS, 0)}
    if file.exists() and (before := json.loads(file.read_text()))["model"] == asked.model:
        state = before
        _say(f"going on with seed {state['seed']}, after {state['faults']} faults")
    model = _model(asked.model, asked.state)
    while state["faults"] < asked.faults:
        _one_more(state, model, min(asked.per_round, asked.faults - state["faults"]), asked.state)
        file.with_suffix(".new").write_text(json.dumps(state))
        file.with_suffix(".new").replace(file)
    told = {"model": asked.model, **{name: state[name] for name in NUMBERS}, "seconds": round(state["seconds"], 1)}
    print(json.dumps(told | {"bad": state["bad"]}))
    file.unlink(missing_ok=True)
    if not state["bad"]:  # else its logs are wanted
        shutil.rmtree(asked.state)
    sys.exit(bool(state["bad"]))


def _one_more(state: dict[str, Any], model: str, faults: int, folder: Path) -> None:
    """The next round, counted; what is wrong with it is kept with its seed."""
    seed, begun = state["seed"], time.monotonic()
    world = list(WORLDS)[seed % len(WORLDS)]
    try:
        told = run_round(world, model, seed, faults + faults % 2, folder)
    except RuntimeError as error:
        told = {"world": world, "seed": seed, "lost": 1, "problems": [str(error)]}
    for name in NUMBERS:
        state[name] += told.get(name, 0)
    if any(told.get(name) for name in _BAD):
        state["bad"].append(told)
        _say(json.dumps(told))
        again = f"--world {world} --model {model} --seed {seed} --faults {faults} --expected {folder}/{world}.json"
        _say(f"again: PYTHONPATH=tests {sys.executable} -P -m support.chaos {again}")
    state["seed"] += 1
    state["seconds"] += time.monotonic() - begun
    done = ", ".join(f"{state[name]} {name}" for name in NUMBERS)
    _say(f"seed {seed} ({world}): {time.monotonic() - begun:.0f} s; so far {done}")


def _model(asked: str, folder: Path) -> str:
    """The folder of a model, made if need be; "fake" as it is."""
    if asked != "tiny":
        return asked
    made = folder / "tiny"
    if not (made / "config.json").exists():
        from support.fake_engine import EOS, VOCAB, fake_model_folder
        from support.tiny_models import make_model

        make_model(made, "llama", vocab_size=VOCAB, eos_token_id=EOS)
        for name in ("tokenizer.json", "tokenizer_config.json"):  # one of bytes, by which answers have shapes
            shutil.copy(fake_model_folder(folder / "bytes") / name, made / name)
    return str(made.resolve())


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
