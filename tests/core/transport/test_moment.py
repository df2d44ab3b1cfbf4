"""Looking before sleeping: once after each thing sent, where there are processors enough, and where it pays."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from enginebay.transport.moment import Moment

SECONDS = 50e-6
MakeMoment = Callable[..., Moment]


@pytest.fixture
def make_moment(monkeypatch: pytest.MonkeyPatch) -> MakeMoment:
    """A moment on a machine of 2 processors, whose clock moves on by a tenth of it at each look at the clock."""
    now = iter(range(10**9))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now) * SECONDS / 10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    return lambda processors=2: Moment(SECONDS, processors=processors)


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
    moment, without = make_moment(), make_moment(3)
    said = []
    for _ in range(8):
        said.append(moment.expect())
        moment.look(Answers(NEVER))
    assert said == [True, True, False, True, False, False, False, True]
    assert not without.expect()


def test_never_on_fewer_processors_than_ends(make_moment: MakeMoment) -> None:
    moment, answers = make_moment(3), Answers(1)
    moment.expect()
    assert (moment.look(answers), answers.looks) == (False, 0)


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
