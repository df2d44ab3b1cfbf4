"""Signs of life: the table from evidence to verdict, and how long steps are expected to take."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.verdicts import Look, Pace, Verdict, announced, busy, describe, judge, lacked
from enginebay.interfaces import RankHealth

LIMIT = 15.0


def rank(
    state: str = "running", age: float = 100.0, phase: str = "execute_model", step: int = 41, **more: float
) -> RankHealth:
    return RankHealth(rank=1, phase=phase, step=step, age=age, state=state, **more)


def look(waited: float, *ranks: RankHealth) -> Look:
    return Look(waited=waited, ranks=ranks)


@pytest.mark.parametrize(
    ("now", "waited", "before", "verdict"),
    [
        # stopped, in a wait that is long enough: once is a suspicion, twice is the verdict  # X5
        (rank("stopped"), 20.0, None, Verdict.SUSPECT),
        (rank("stopped"), 20.0, rank("stopped"), Verdict.HUNG),
        (rank("stopped"), LIMIT, rank("stopped"), Verdict.HUNG),
        # stopped in between, going on now
        (rank("running"), 20.0, rank("stopped"), Verdict.FINE),
        (rank("stopped"), 20.0, rank("running"), Verdict.SUSPECT),
        # stopped a moment ago, or waited for only a moment: an idle worker is silent for hours
        (rank("stopped", age=14.9), 20.0, rank("stopped"), Verdict.FINE),
        (rank("stopped", age=4000.0), 14.9, rank("stopped"), Verdict.FINE),
        # what was announced is no excuse for one that is stopped
        (rank("stopped", budget=600.0), 20.0, rank("stopped"), Verdict.HUNG),
        # of a call that is no step nothing is expected: it has a deadline of its own  # X6
        (rank("running", age=4000.0), 4000.0, rank("running"), Verdict.FINE),
        (rank("", age=4000.0), 4000.0, rank(""), Verdict.FINE),
        # ended: the executor reports that
        (rank("gone"), 20.0, rank("gone"), Verdict.FINE),
        (rank("gone"), 20.0, rank("stopped"), Verdict.FINE),
    ],
)
def test_one_that_is_stopped(now: RankHealth, waited: float, before: RankHealth | None, verdict: Verdict) -> None:
    first = look(waited - 1.0, *(() if before is None else (before,)))
    assert judge(1, look(waited, now), first, first, limit=LIMIT) is verdict


SINCE = rank(ran=50.0, queued=7.0)


@pytest.mark.parametrize(
    ("now", "waited", "verdict"),
    [
        # within what is expected, whatever it does
        (rank(ran=50.0, queued=7.0), 10.0, Verdict.FINE),
        (rank(ran=50.0, queued=12.0), 10.0, Verdict.FINE),
        # past it: it computes; it would compute; it does neither
        (rank(ran=55.0, queued=7.0), 25.0, Verdict.SLOW),
        (rank(ran=61.0, queued=16.0), 25.0, Verdict.SLOW),
        (rank(ran=60.0, queued=17.0), 25.0, Verdict.STARVED),
        (rank(ran=50.0, queued=27.0), 25.0, Verdict.STARVED),
        (rank(ran=50.1, queued=7.1), 25.0, Verdict.BLOCKED),
        # the executor does not say, or has begun to in between
        (rank(), 25.0, Verdict.SLOW),
        # it has asked for so much time, or for too little
        (rank(ran=55.0, queued=7.0, budget=200.0), 25.0, Verdict.FINE),
        (rank(ran=55.0, queued=7.0, budget=99.0), 25.0, Verdict.SLOW),
        # it waits for its call: others are late
        (rank(ran=50.0, queued=7.0, phase="idle"), 25.0, Verdict.FINE),
        # however long: never hung, since it is not stopped  # X6, R8
        (rank(ran=4000.0, queued=7.0), 4000.0, Verdict.SLOW),
        (rank(ran=60.0, queued=3990.0), 4000.0, Verdict.STARVED),
        (rank(ran=50.0, queued=7.0), 4000.0, Verdict.BLOCKED),
    ],
)
def test_one_that_is_late(now: RankHealth, waited: float, verdict: Verdict) -> None:
    first, before = look(5.0, SINCE), look(waited - 1.0, SINCE)
    assert judge(1, look(waited, now), before, first, limit=LIMIT, expected=10.0) is verdict
    assert verdict.late is (verdict is not Verdict.FINE)


def test_at_the_first_look_nothing_is_known_of_why() -> None:
    now = look(25.0, SINCE)
    assert judge(1, now, look(0.0), now, limit=LIMIT, expected=10.0) is Verdict.SLOW


_SECONDS = st.floats(0.0, 1e4)


@given(_SECONDS, _SECONDS, _SECONDS, _SECONDS, _SECONDS)
def test_nobody_is_hung_but_who_was_seen_stopped_twice(
    waited: float, age: float, ran: float, queued: float, expected: float
) -> None:
    for state in ("running", "", "gone", "stopped"):
        for before in ("running", "", "gone", "stopped"):
            now, was = rank(state, age=age, ran=ran, queued=queued), rank(before)
            verdict = judge(1, look(waited, now), look(0.0, was), look(0.0, was), limit=LIMIT, expected=expected)
            hung = state == before == "stopped" and age >= LIMIT and waited >= LIMIT
            assert (verdict is Verdict.HUNG) == hung


def test_what_was_lacked_is_that_of_the_worst_off_since_the_first_look() -> None:
    first = look(5.0, rank(queued=7.0), RankHealth(rank=2, queued=3.0), RankHealth(rank=3, phase="idle", queued=0.0))
    now = look(9.0, rank(queued=9.0), RankHealth(rank=2, queued=6.0), RankHealth(rank=3, phase="idle", queued=4.0))
    assert lacked(now, first) == 3.0
    assert lacked(look(9.0, rank()), look(5.0, rank())) == 0.0
    assert lacked(look(9.0, rank(queued=9.0)), look(5.0)) == 0.0


def test_a_step_is_late_after_ten_times_the_longest_of_its_size_and_five_seconds_at_least() -> None:
    pace = Pace()
    assert pace.expected(1) == 5.0
    pace.took(1, 0.4)
    pace.took(1000, 2.0)
    pace.took(700, 1.0)
    assert (pace.expected(1), pace.expected(512), pace.expected(1023)) == (5.0, 20.0, 20.0)
    assert (pace.expected(511), pace.expected(1024)) == (5.0, 5.0)


def test_words() -> None:
    assert describe(rank()) == "rank 1 has been in execute_model of step 41 for 100 s"
    assert describe(rank("stopped", age=16.7)) == (
        "rank 1 has been in execute_model of step 41 for 17 s (its process is stopped)"
    )
    assert describe(rank(phase="load_model", step=-1, age=412.0)) == "rank 1 has been in load_model for 412 s"
    assert describe(rank(phase="", step=-1)) == "rank 1 has been in its start for 100 s"
    assert busy([rank(), rank(phase="idle")]) == [rank()]


@pytest.mark.parametrize(
    ("budgets", "left"),
    [
        ([], 0.0),
        ([(0.0, 5.0)], 0.0),
        ([(60.0, 5.0)], 55.0),
        ([(0.0, 1.0), (30.0, 40.0)], -10.0),
        ([(1e9, 1.0)], 3599.0),
        ([(math.inf, 1.0)], 3599.0),
    ],
)
def test_what_is_left_of_what_was_announced(budgets: list[tuple[float, float]], left: float) -> None:  # X6
    ranks = [RankHealth(rank=i, budget=budget, age=age) for i, (budget, age) in enumerate(budgets)]
    assert announced(ranks) == left
