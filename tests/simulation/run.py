"""Runs many seeds: in this process, or spread over several, each seed on its own and with its own digest."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from simulation.minimise import minimise
from simulation.outcome import Outcome, run_plan
from simulation.plan import Plan, make_plan

__all__ = ["Totals", "quiet", "replay_command", "run_seeds", "small_plan", "start_child", "totals_of_child"]

_TESTS = Path(__file__).resolve().parent.parent
_SWEEP = 200


class Totals(msgspec.Struct, kw_only=True):
    """Sums over seeds; ``bad`` has (seed, problem) of the first few that failed, ``digests`` 16 hex digits a seed."""

    seeds: int = 0
    requests: int = 0
    tokens: int = 0
    struck: int = 0
    calls: int = 0
    generations: int = 0
    num_bad: int = 0
    bad: list[tuple[int, str]] = msgspec.field(default_factory=list)
    digests: list[str] = msgspec.field(default_factory=list)
    seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """One more seed."""
        self.seeds += 1
        self.requests += outcome.requests
        self.tokens += outcome.tokens
        self.struck += outcome.struck
        self.calls += outcome.calls
        self.generations += outcome.generations
        self.digests.append(outcome.digest.hex())
        if outcome.problem:
            self.num_bad += 1
            if len(self.bad) < 20:
                self.bad.append((outcome.seed, outcome.problem))

    def join(self, other: Totals) -> None:
        """Add the sums of seeds that come after these; time is the longest of both."""
        for name in ("seeds", "requests", "tokens", "struck", "calls", "generations", "num_bad"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bad += other.bad
        self.digests += other.digests
        self.seconds = max(self.seconds, other.seconds)

    def line(self) -> str:
        """What came of it, on one line."""
        count = max(self.seeds, 1)
        return (
            f"{self.seeds} schedules, {self.num_bad} bad, {self.seconds:.1f} s of one core each; "
            f"means: {self.requests / count:.2f} requests, {self.tokens / count:.1f} committed tokens, "
            f"{self.struck / count:.2f} faults struck, {self.calls / count:.1f} calls, "
            f"{self.generations / count:.2f} voids"
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Around many runs: no logging, and garbage is swept between runs instead of during them.

    What was there before is frozen meanwhile, so that a sweep looks at the runs' garbage alone; and for good where
    whoever runs this has frozen something, since nobody can thaw a part.
    """
    disabled, enabled, frozen = logging.root.manager.disable, gc.isenabled(), gc.get_freeze_count() > 0
    logging.disable(logging.CRITICAL)
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        logging.disable(disabled)
        if enabled:
            gc.enable()


def run_seeds(
    seeds: Iterable[int],
    *,
    first_bad: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Totals:
    """Run seeds here; ``first_bad``: stop at the first that fails."""
    totals = Totals()
    began = time.process_time()
    with quiet():
        for done, seed in enumerate(seeds, 1):
            totals.add(run_plan(make_plan(seed)))
            if first_bad and totals.num_bad:
                break
            if done % _SWEEP == 0:
                gc.collect()
                progress(_SWEEP)
    totals.seconds = time.process_time() - began
    return totals


def small_plan(seed: int) -> tuple[Plan, str]:
    """The smallest plan found that fails as the seed does, and how it fails."""
    with quiet():
        plan = minimise(make_plan(seed), lambda candidate: run_plan(candidate).problem != "")
        return plan, run_plan(plan).problem


def replay_command(seed: int, mutant: str = "") -> str:
    """What shows a seed again, small."""
    with_mutant = f" --mutant {mutant}" if mutant else ""
    return f"PYTHONPATH=tests python -m simulation --replay {seed}{with_mutant}"


def start_child(first: int, last: int, *, hash_seed: int, mutant: str = "") -> subprocess.Popen[bytes]:
    """A process of its own for these seeds, with that PYTHONHASHSEED."""
    command = [sys.executable, "-m", "simulation", "--seeds", f"{first}:{last}", "--json"]
    if mutant:
        command += ["--mutant", mutant]
    environment = {**os.environ, "PYTHONPATH": str(_TESTS), "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, cwd=_TESTS)


def totals_of_child(child: subprocess.Popen[bytes]) -> Totals:
    """What such a process came to, once it has ended."""
    out, _ = child.communicate()
    assert child.returncode == 0, f"a process of the simulation ended with {child.returncode}"
    return msgspec.json.decode(out, type=Totals)
