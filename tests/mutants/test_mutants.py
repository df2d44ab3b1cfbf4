"""Each mutant is noticed by the simulation within 5,000 seeds, and its seed is good without it.

That all seeds are good without one is what tests/simulation holds.
"""

from __future__ import annotations

import pytest

from mutants import MUTANTS, mutated
from simulation.run import run_seeds

WITHIN = 5_000


@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_kills(name: str) -> None:  # R11
    with mutated(name):
        totals = run_seeds(range(WITHIN), first_bad=True)
    assert totals.num_bad == 1, f"{name} survives {WITHIN} seeds"
    seed, problem = totals.bad[0]
    print(f"{name}: killed by seed {seed}: {problem}")
    assert "TypeError" not in problem, "the mutant itself is broken"
    assert "AttributeError" not in problem, "the mutant itself is broken"
    unmutated = run_seeds([seed])
    assert unmutated.bad == []


def test_there_are_enough_and_each_says_what_it_breaks() -> None:
    assert len(MUTANTS) >= 50
    assert all((mutant.__doc__ or "").strip().endswith(".") for mutant in MUTANTS.values())
