"""What is decided about a setback: the whole table."""

from __future__ import annotations

import pytest

from enginebay.engine.recovery import OF_WORKERS, Action, Bounds, Evidence, Setback, decide
from enginebay.errors import EngineDead, OutOfMemory, PolicyFailed, StartFailed, WorkerFailed, WorkerHung, WorkerLost

VOID, RESPAWN, DIE = Action.VOID, Action.RESPAWN, Action.DIE


@pytest.mark.parametrize("restartable", [True, False])
@pytest.mark.parametrize(
    ("evidence", "failed_steps", "restartable_action", "fixed_action"),
    [
        (Evidence.STALE, 0, VOID, VOID),
        (Evidence.STALE, 99, VOID, VOID),  # Progress bounds it
        (Evidence.FAILED, 0, VOID, VOID),
        (Evidence.FAILED, 1, VOID, VOID),
        (Evidence.FAILED, 2, DIE, DIE),
        (Evidence.FAILED, 3, DIE, DIE),
        (Evidence.LOST, 0, RESPAWN, DIE),
        (Evidence.LOST, 2, RESPAWN, DIE),
        (Evidence.HUNG, 0, RESPAWN, DIE),
        (Evidence.UNBORN, 0, RESPAWN, DIE),
    ],
)
def test_the_table(
    evidence: Evidence, failed_steps: int, restartable_action: Action, fixed_action: Action, restartable: bool
) -> None:
    bounds = Bounds(max_failed_steps=3, restartable=restartable)
    assert decide(evidence, failed_steps, bounds) is (restartable_action if restartable else fixed_action)
    stopping = Bounds(max_failed_steps=3, restartable=restartable, stopping=True)
    assert decide(evidence, failed_steps, stopping) is DIE


def test_ranks_that_compute_together_do_not_go_on_after_one_failed() -> None:
    """The others stand in a collective that nobody finishes; a stale answer is no such thing."""
    bounds = Bounds(max_failed_steps=3, restartable=True, several=True)
    assert decide(Evidence.FAILED, 0, bounds) is RESPAWN
    assert decide(Evidence.STALE, 0, bounds) is VOID
    fixed = Bounds(max_failed_steps=3, restartable=False, several=True)
    assert decide(Evidence.FAILED, 0, fixed) is DIE


@pytest.mark.parametrize(
    ("error", "evidence"),
    [
        (WorkerLost("x"), Evidence.LOST),
        (WorkerHung("x"), Evidence.HUNG),
        (WorkerFailed("x"), Evidence.FAILED),
        (OutOfMemory("x"), Evidence.FAILED),
        (StartFailed("x"), Evidence.FAILED),
    ],
)
def test_which_evidence_an_error_is(error: Exception, evidence: Evidence) -> None:
    assert isinstance(error, OF_WORKERS)
    setback = Setback.of(error)
    assert (setback.evidence, setback.error, str(setback)) == (evidence, error, "x")


def test_faults_of_code_are_no_setbacks() -> None:
    assert not isinstance(EngineDead("x"), OF_WORKERS)
    assert not isinstance(PolicyFailed("x"), OF_WORKERS)
