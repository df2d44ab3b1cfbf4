"""Which faults are due when: by script, and drawn from a seed."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from enginebay.testing.faults import Fault, FaultKind, FaultOptions, RandomFaults, draw
from enginebay.testing.faults.agenda import Agenda


def script(*faults: Fault) -> Agenda:
    return Agenda(FaultOptions(script=faults), 0, [0, 1])


def kinds(faults: list[Fault]) -> list[str]:
    return [one.kind.value for one in faults]


def test_a_fault_comes_once_with_its_call() -> None:
    agenda = script(Fault(kind=FaultKind.KILL, after_calls=3), Fault(kind=FaultKind.STOP, after_calls=1))
    assert [kinds(agenda.at_call([0, 1], 0.0)) for _ in range(4)] == [["stop"], [], ["kill"], []]
    assert agenda.next_time() is None


def test_a_fault_of_a_call_waits_for_one_to_its_rank() -> None:
    agenda = script(
        Fault(kind=FaultKind.FAIL, rank=1, after_calls=1), Fault(kind=FaultKind.KILL, rank=1, after_calls=1)
    )
    assert kinds(agenda.at_call([0], 0.0)) == ["kill"]  # a process can be killed whoever is called
    assert kinds(agenda.at_call([0], 0.0)) == []
    assert kinds(agenda.at_call([0, 1], 0.0)) == ["fail"]


def test_a_fault_by_time_needs_no_call_unless_it_is_one_of_a_call() -> None:
    agenda = script(
        Fault(kind=FaultKind.DELAY_REPLY, after_seconds=1.0), Fault(kind=FaultKind.FILL_SHM, after_seconds=2)
    )
    assert agenda.next_time() == 1.0
    assert kinds(agenda.at_time(1.5)) == []
    assert agenda.next_time() == 2.0
    assert kinds(agenda.at_time(2.0)) == ["fill_shm"]
    assert kinds(agenda.at_call([0], 9.0)) == ["delay_reply"]
    assert agenda.next_time() is None


def test_another_replicas_faults_are_not_this_ones() -> None:
    options = FaultOptions(script=(Fault(kind=FaultKind.KILL, replica=1, after_calls=1),))
    assert kinds(Agenda(options, 0, [0]).at_call([0], 0.0)) == []
    assert kinds(Agenda(options, 1, [0]).at_call([0], 0.0)) == ["kill"]


RANDOM = RandomFaults(seed=7, rate=0.5, kinds=tuple(FaultKind), limit=40)


def test_a_seed_draws_the_same_in_every_process() -> None:
    code = (
        "from enginebay.testing.faults import FaultKind, RandomFaults, draw\n"
        "print(list(draw(RandomFaults(seed=7, rate=0.5, kinds=tuple(FaultKind), limit=40), 1, [0, 1])))"
    )
    said = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    drawn = list(draw(RANDOM, 1, [0, 1]))
    assert said == str(drawn)
    assert drawn != list(draw(RANDOM, 0, [0, 1]))  # each replica has its own
    assert {one.kind for one in drawn} == set(FaultKind)
    assert {one.rank for one in drawn} == {0, 1}


@given(
    st.builds(
        RandomFaults,
        seed=st.integers(0, 1000),
        rate=st.floats(0.01, 10),
        per=st.sampled_from(["second", "call"]),
        gap=st.floats(0, 20),
        limit=st.integers(1, 20),
        never=st.floats(0, 1),
    )
)
def test_what_is_drawn_keeps_to_its_bounds(random: RandomFaults) -> None:
    drawn = list(draw(random, 0, [0, 1, 2]))
    assert len(drawn) == random.limit
    assert {one.kind for one in drawn} <= set(random.kinds)
    times = [one.after_calls or one.after_seconds or 0.0 for one in drawn]
    for before, after in itertools.pairwise([0.0, *times]):
        assert after >= before + random.gap - 1.0, "a call more or less by rounding"
    low, high = random.seconds
    assert all(low <= one.seconds <= high or (one.kind is FaultKind.STOP and not one.seconds) for one in drawn)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 5)), max_size=80))
def test_each_drawn_fault_is_handed_out_once_and_in_time(moments: list[tuple[bool, float]]) -> None:
    random = RandomFaults(seed=3, rate=0.3, kinds=tuple(FaultKind), limit=15)
    agenda, now, got = Agenda(FaultOptions(random=random), 0, [0]), 0.0, []
    for is_call, passed in moments:
        now += passed
        got += agenda.at_call([0], now) if is_call else agenda.at_time(now)
    got += agenda.at_call([0], now)
    due = [one for one in draw(random, 0, [0]) if (one.after_seconds or 0.0) <= now]
    assert sorted(map(str, got)) == sorted(map(str, due))


@pytest.mark.parametrize("times", [{}, {"after_calls": 1, "after_seconds": 1.0}])
def test_a_fault_has_one_time(times: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="a fault has either after_calls or after_seconds"):
        Fault.model_validate({"kind": "kill", **times})
