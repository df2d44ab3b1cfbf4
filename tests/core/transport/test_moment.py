"""Looking before sleeping: once after each thing sent, where it pays; giving way where processors are few."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from enginebay.transport.moment import Moment

SECONDS = 50e-6
MakeMoment = Callable[..., Moment]


@pytest.fixture
def make_moment(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> MakeMoment:
    """A moment on a machine of 2 processors, whose clock moves on by a tenth of it at each look at the clock."""
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(os, "sched_yield", clock.give_way)
    return lambda processors=2: Moment(SECONDS, processors=processors)


class Clock:
    """Moves on by a tenth of a moment when it is read, and by what others take when somebody gives way."""

    def __init__(self) -> None:
        self.now, self.others_take = 0.0, 0.0
        self.gave_way = 0

    def __call__(self) -> float:
        self.now += SECONDS / 10
        return self.now

    def give_way(self) -> None:
        self.gave_way += 1
        self.now += self.others_take


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Answers:
    """What is there, at the so-manieth look; how often it was looked for."""

    def __init__(self, at: float) -> None:
        self.looks, self._at = 0, at

    def __call__(self) -> bool:
        self.looks += 1
        return self.looks >= self._at


NEVER = float("inf")


def test_only_after_something_was_sent(make_moment: MakeMoment) -> None:
    moment, answers = make_moment(), Answers(1)
    assert (moment.look(answers), answers.looks) == (False, 0)
    moment.expect()
    assert (moment.look(answers), answers.looks) == (True, 1)


def test_a_moment_ends_and_is_the_last_one(make_moment: MakeMoment) -> None:
    moment, never = make_moment(), Answers(NEVER)
    moment.expect()
    assert [moment.look(never), moment.look(never)] == [False, False]
    assert never.looks == 10


def test_what_is_there_at_the_last_look_is_seen(make_moment: MakeMoment) -> None:
    moment = make_moment()
    moment.expect()
    assert moment.look(Answers(10))


def test_several_answers_to_one_thing_sent(make_moment: MakeMoment) -> None:
    moment = make_moment()
    moment.expect()
    assert [moment.look(Answers(2)) for _ in range(3)] == [True] * 3


def test_what_is_sent_says_whether_it_will_be_looked_for(make_moment: MakeMoment) -> None:
    moment = make_moment()
    said = []
    for _ in range(8):
        said.append(moment.expect())
        moment.look(Answers(NEVER))
    assert said == [True, True, False, True, False, False, False, True]


def test_nobody_looks_on_a_single_processor(make_moment: MakeMoment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    moment, answers = make_moment(), Answers(1)
    assert not moment.expect()
    assert (moment.look(answers), answers.looks) == (False, 0)


@pytest.mark.parametrize(("processors", "gave_way"), [(2, 0), (3, 4)])
def test_on_fewer_processors_than_ends_each_look_gives_way(
    make_moment: MakeMoment, clock: Clock, processors: int, gave_way: int
) -> None:
    moment = make_moment(processors)
    assert moment.expect()
    assert moment.look(Answers(5))
    assert clock.gave_way == gave_way


def test_who_gave_its_processor_away_for_long_rests_in_proportion(make_moment: MakeMoment, clock: Clock) -> None:
    moment, answers = make_moment(3), Answers(2)
    clock.others_take = 4e-3
    moment.expect()
    assert not moment.look(answers)  # it came meanwhile, and the bell tells of it
    clock.others_take = 0.0
    assert _looked(moment, 10, 1) == []
    clock.now += 0.1
    assert _looked(moment, 10, 1) == []
    clock.now += 0.1
    assert _looked(moment, 10, 1) == list(range(10))


def _looked(moment: Moment, count: int, at: float) -> list[int]:
    """Which of so many things sent were followed by a look."""
    found = []
    for number in range(count):
        answers = Answers(at)
        moment.expect()
        moment.look(answers)
        if answers.looks:
            found.append(number)
    return found


def test_moments_in_vain_become_rare(make_moment: MakeMoment) -> None:
    moment = make_moment()
    assert _looked(moment, 800, NEVER) == [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 767]


def test_one_that_is_not_in_vain_brings_them_back(make_moment: MakeMoment) -> None:
    moment = make_moment()
    _looked(moment, 32, NEVER)
    assert _looked(moment, 100, 3) == list(range(31, 100))
    assert _looked(moment, 8, NEVER) == [0, 1, 3, 7]
