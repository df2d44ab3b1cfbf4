"""``python -m simulation``: run seeds, with or without a mutant, or replay one seed and print it small."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from itertools import pairwise

import msgspec

from simulation.run import Totals, replay_command, run_seeds, small_plan, start_child, totals_of_child


def main() -> int:
    """The command line; returns 1 when a seed is bad."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:20000", help="FIRST:END, or one seed")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--mutant", default="", help="a name of mutants.MUTANTS")
    parser.add_argument("--replay", type=int, help="run this seed, make its plan small, and print it")
    parser.add_argument("--json", action="store_true", help="print the totals with all digests as JSON")
    arguments = parser.parse_args()
    from mutants import mutated

    with mutated(arguments.mutant) if arguments.mutant else nullcontext():
        if arguments.replay is not None:
            return _replay(arguments.replay)
        first, _, end = arguments.seeds.partition(":")
        start, stop = int(first), int(end or int(first) + 1)
        if arguments.processes > 1:
            totals = _spread(start, stop, arguments.processes, arguments.mutant)
        else:
            totals = run_seeds(range(start, stop), progress=_Bar(stop - start, show=not arguments.json))
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode(totals))
        return 0
    print(totals.line())
    for seed, problem in totals.bad:
        print(f"seed {seed}: {problem}\n  {replay_command(seed, arguments.mutant)}")
    return 1 if totals.num_bad else 0


def _replay(seed: int) -> int:
    plan, problem = small_plan(seed)
    print(problem or f"seed {seed} is good")
    print(msgspec.json.format(msgspec.json.encode(plan), indent=2).decode())
    return 1 if problem else 0


def _spread(start: int, stop: int, processes: int, mutant: str) -> Totals:
    edges = [start + (stop - start) * part // processes for part in range(processes + 1)]
    children = [
        start_child(first, last, hash_seed=part, mutant=mutant) for part, (first, last) in enumerate(pairwise(edges))
    ]
    totals = Totals()
    for child in children:
        totals.join(totals_of_child(child))
    return totals


class _Bar:
    """A progress bar on stderr, when that is a terminal."""

    def __init__(self, total: int, *, show: bool) -> None:
        self._total, self._done = total, 0
        self._show = show and sys.stderr.isatty()

    def __call__(self, done: int) -> None:
        self._done += done
        if self._show:
            filled = 40 * self._done // max(self._total, 1)
            print(f"\r[{'#' * filled}{'.' * (40 - filled)}] {self._done}/{self._total}", end="", file=sys.stderr)
            if self._done >= self._total:
                print(file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
