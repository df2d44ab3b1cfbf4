"""``python -m simulation``: run seeds, with or without a mutant, or replay one seed and print it small."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

import msgspec

from simulation.run import replay_command, run_seeds, small_plan
from simulation.soak import Bar, soak, spread


def main() -> int:
    """The command line; returns 1 when a seed is bad."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:20000", help="FIRST:END, or one seed")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--mutant", default="", help="a name of mutants.MUTANTS")
    parser.add_argument("--replay", type=int, help="run this seed, make its plan small, and print it")
    parser.add_argument("--state", type=Path, help="keep here what is done, and go on from it when run again")
    parser.add_argument("--json", action="store_true", help="print the totals with all digests as JSON")
    arguments = parser.parse_args()
    from mutants import mutated

    with mutated(arguments.mutant) if arguments.mutant else nullcontext():
        if arguments.replay is not None:
            return _replay(arguments.replay)
        first, _, end = arguments.seeds.partition(":")
        start, stop = int(first), int(end or int(first) + 1)
        bar, processes, mutant = Bar(stop - start, show=not arguments.json), arguments.processes, arguments.mutant
        if arguments.state is not None:
            totals = soak(start, stop, state=arguments.state, processes=processes, mutant=mutant, progress=bar)
        elif processes > 1:
            totals = spread(start, stop, processes, mutant)
        else:
            totals = run_seeds(range(start, stop), progress=bar)
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


if __name__ == "__main__":
    sys.exit(main())
