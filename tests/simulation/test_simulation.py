"""20,000 fault schedules with the real core, and each run twice with equal logs; small failing plans of old, kept."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from enginebay.status._transitions import STAGES
from mutants import MUTANTS, mutated
from simulation.minimise import minimise
from simulation.outcome import run_plan
from simulation.plan import CALL_FAULTS, Plan, make_plan
from simulation.run import quiet, replay_command, run_seeds, start_child, totals_of_child
from simulation.soak import Bar, soak
from simulation.world import World

SEEDS = 20_000
MILLION = 1_000_000
AGAIN = 2_000
"""So many of them run twice in the suite, and all in the soak."""


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """A plan that once failed, or that fails under a mutant, with what it shows."""

    shows: str
    plan: Plan
    mutant: str = ""


KEPT = msgspec.json.decode((Path(__file__).parent / "seeds.json").read_bytes(), type=list[Kept])


@pytest.mark.timeout(900)  # a minute on two idle cores, many on a busy machine
@pytest.mark.parametrize("num_again", [AGAIN, pytest.param(SEEDS, marks=pytest.mark.soak)])
def test_no_fault_schedule_loses_or_doubles_a_token(num_again: int) -> None:  # R7, R8, R10, R11, S9, S13, S14
    half = SEEDS // 2
    parts = (0, half, 1), (half, SEEDS, 1), (0, num_again, 2)
    children = [start_child(start, stop, hash_seed=hash_seed) for start, stop, hash_seed in parts]
    first, rest, again = (totals_of_child(child) for child in children)
    first.join(rest)
    print(first.line())
    shown = "\n".join(f"seed {seed}: {problem}; {replay_command(seed)}" for seed, problem in first.bad)
    assert first.num_bad == 0, shown
    different = [seed for seed in range(num_again) if first.digests[seed] != again.digests[seed]]
    assert not different, f"another log under another PYTHONHASHSEED: seeds {different[:10]}"
    assert len(set(first.digests)) == SEEDS, "two seeds have one log"
    assert first.requests >= 4 * SEEDS
    assert first.tokens >= 15 * SEEDS  # engines that give up, and convicts, leave some undone
    assert first.struck >= 2 * SEEDS


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_no_schedule_of_a_million_is_bad(pytestconfig: pytest.Config) -> None:  # R11; interrupted, it goes on
    assert pytestconfig.cache is not None
    state = pytestconfig.cache.mkdir("simulation") / "soak.json"
    totals = soak(0, MILLION, state=state, processes=os.cpu_count() or 1, progress=Bar(MILLION))
    print(totals.line())
    assert totals.seeds == MILLION
    assert totals.num_bad == 0, "\n".join(f"{problem}; {replay_command(seed)}" for seed, problem in totals.bad)


def test_a_soak_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    done: list[int] = []

    def until_the_second(more: int) -> None:
        done.append(more)
        if len(done) == 3:
            raise KeyboardInterrupt

    state = tmp_path / "soak" / "state.json"
    with pytest.raises(KeyboardInterrupt):
        soak(100, 130, state=state, block=10, progress=until_the_second)
    assert done == [0, 10, 10]  # the second block was run, and not written
    done.clear()
    totals = soak(100, 130, state=state, block=10, progress=done.append)
    assert done == [10, 10, 10]
    assert (totals.seeds, totals.requests) == (30, run_seeds(range(100, 130)).requests)
    assert soak(100, 130, state=state, progress=done.append).seeds == 30
    assert done == [10, 10, 10, 30]


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.shows[:60])
def test_kept_plans_are_good(kept: Kept) -> None:
    with quiet():
        assert run_plan(kept.plan).problem == ""
        if kept.mutant:
            with mutated(kept.mutant):
                assert run_plan(kept.plan).problem != ""


def test_every_kind_of_fault_comes_with_every_depth() -> None:
    seen = {(fault.kind, plan.depth) for plan in map(make_plan, range(2000)) for fault in plan.faults}
    assert seen == {(kind, depth) for kind in (*CALL_FAULTS, "die") for depth in (1, 2, 3)}


def test_workers_end_in_every_phase_of_a_start_and_engines_for_every_reason() -> None:  # R2, R3, R4, R5
    seen: dict[str, int] = {}
    with quiet():
        for seed in range(600):
            world = World(make_plan(seed))
            world.run()
            end = str(world.core.death() or "")
            reasons = [one for one in ("more than", "failed twice", "quarantined") if one in end]
            for what in (*world.lives.died_in, *reasons, *["convicted"] * world.lives.num_convicted):
                seen[what] = seen.get(what, 0) + 1
            vars(world).clear()  # its parts hold it, and it them
    assert {*STAGES, "Ready", "more than", "quarantined", "convicted"} <= seen.keys()


def test_the_minimiser_keeps_what_fails_and_drops_the_rest() -> None:
    plan = make_plan(5)
    assert len(plan.wants) > 2
    small = minimise(plan, lambda candidate: any(want.max_tokens > 1 for want in candidate.wants))
    assert [want.max_tokens for want in small.wants] == [2]
    assert small.faults == []
    assert (small.depth, len(small.wants[0].prompt)) == (1, 1)


def test_a_failing_seed_names_the_command_that_replays_it() -> None:
    with mutated("budget_is_over_by_one"):
        totals = run_seeds(range(100), first_bad=True)
    assert totals.num_bad == 1
    ((seed, problem),) = totals.bad
    assert "Violation" in problem
    assert replay_command(seed, "budget_is_over_by_one") == (
        f"PYTHONPATH=tests python -m simulation --replay {seed} --mutant budget_is_over_by_one"
    )


def test_a_mutant_is_lifted_again() -> None:
    with quiet():
        before = run_plan(make_plan(1))
        for name in MUTANTS:
            with mutated(name):
                pass
        after = run_plan(make_plan(1))
    assert before == after
    assert before.problem == ""
