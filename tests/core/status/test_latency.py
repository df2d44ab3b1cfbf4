"""The times of starts: one sample for each that came to its end, by stage, with and without the weights."""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.roster import Roster, slots_of
from enginebay.engine.supervision import Supervision
from enginebay.errors import WorkerLost
from enginebay.interfaces import WorkerExit
from enginebay.messages import Incarnation, Phase, RankPlace, Stage, WorkerStatus, WorldPlan
from enginebay.status import StartSample, StartTimes, start_of
from support.clock import FakeClock, fake_runtime
from support.status import SLOT, Stand, status

READY = Phase.READY
TIMES = [(0, Phase.STARTING), (0.5, Phase.INIT_DEVICE), (1, Phase.LOADING), (41, Phase.WARMUP), (45, READY)]
STAGES = [phase for _, phase in TIMES[:-1]]


@dataclass
class Told:
    """A stand whose statuses are shown to ``times`` after each change."""

    stand: Stand
    times: StartTimes
    samples: list[StartSample]

    @classmethod
    def new(cls) -> Told:
        times, samples = StartTimes(nullcontext()), list[StartSample]()
        times.listen(samples.append)
        return cls(Stand(), times, samples)

    def set(self, one: WorkerStatus) -> None:
        self.stand.book.set(one)
        self.times.ready(entry.status for entry in self.stand.book.entries())

    def starts(self, inc: str = "a") -> None:
        for at, phase in TIMES:
            self.stand.now = 100.0 + at
            self.set(status(phase, inc=inc))


def test_one_sample_for_each_start() -> None:  # T24
    told = Told.new()
    told.starts()
    for phase in (Phase.DEGRADED, READY, Phase.DRAINING, READY):
        told.stand.now += 10
        told.set(status(phase))
    (sample,) = told.samples
    assert dict(sample.stages) == {
        Phase.STARTING: 0.5,
        Phase.INIT_DEVICE: 0.5,
        Phase.LOADING: 40.0,
        Phase.WARMUP: 4.0,
    }
    assert (sample.total, sample.without_weights, sample.slot, sample.incarnation.id) == (45.0, 5.0, SLOT, "a")
    assert sample.words == "ready after 45.0 s: Starting 0.5, InitDevice 0.5, Loading 40.0, Warmup 4.0"
    assert told.times.recent() == (sample,)


def test_the_next_life_has_a_sample_of_its_own() -> None:
    told = Told.new()
    told.starts()
    told.stand.book.terminate("a", signal=9)
    told.stand.book.end("a", asked=False)
    told.starts("b")
    assert [one.incarnation.id for one in told.samples] == ["a", "b"]


def test_a_worker_that_was_ready_before_gives_none() -> None:  # T24
    told = Told.new()
    told.set(status(READY))
    assert told.samples == []


@pytest.mark.parametrize("num_stages", range(1, 5))
def test_a_start_that_ends_before_it_is_ready_gives_none(num_stages: int) -> None:
    told = Told.new()
    for phase in STAGES[:num_stages]:
        told.stand.now += 1.0
        told.set(status(phase))
    told.stand.book.terminate("a", signal=9)
    told.stand.book.end("a", asked=False)
    told.times.ready(entry.status for entry in told.stand.book.entries())
    assert told.samples == []


@given(ended=st.lists(st.floats(0, 1e6), min_size=1, max_size=4), is_open=st.booleans())
def test_the_whole_is_the_sum_of_its_parts(ended: list[float], is_open: bool) -> None:
    stages = [Stage(phase=phase, begun=0.0, ended=end) for phase, end in zip(STAGES, ended, strict=False)]
    if is_open:
        stages[-1] = Stage(phase=stages[-1].phase, begun=0.0)
    sample = start_of(WorkerStatus(slot=SLOT, incarnation=Incarnation(id="a"), phase=READY, stages=tuple(stages)))
    if is_open:
        assert sample is None
    else:
        assert sample is not None
        assert sample.total == pytest.approx(sum(ended))
        weights = ended[2] if len(ended) > 2 else 0.0
        assert sample.without_weights == pytest.approx(sum(ended) - weights, abs=1e-6)


def test_a_listener_that_raises_has_no_part_in_the_start(caplog: pytest.LogCaptureFixture) -> None:
    times, told = StartTimes(nullcontext()), list[StartSample]()

    def broken(sample: StartSample) -> None:
        raise ValueError("no such gauge")

    times.listen(broken)
    times.listen(told.append)
    stages = (Stage(phase=Phase.STARTING, begun=0.0, ended=1.0),)
    times.ready([WorkerStatus(slot=SLOT, incarnation=Incarnation(id="a"), phase=READY, stages=stages)])
    assert len(told) == 1
    assert [one.getMessage() for one in caplog.records] == [
        "a listener to the times of starts raised ValueError: no such gauge"
    ]


def test_the_last_are_kept() -> None:
    times = StartTimes(threading.Lock())
    stages = (Stage(phase=Phase.STARTING, begun=0.0, ended=1.0),)
    for number in range(300):
        times.ready([WorkerStatus(slot=SLOT, incarnation=Incarnation(id=str(number)), phase=READY, stages=stages)])
    kept = [one.incarnation.id for one in times.recent()]
    assert kept == [str(number) for number in range(44, 300)]


def test_each_rank_of_a_group_that_was_started_has_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = WorldPlan(ranks=(RankPlace(), RankPlace(rank=1, local_rank=1)))
    clock = FakeClock()
    runtime = fake_runtime(clock)
    supervision = Supervision(runtime, {})
    roster = Roster(supervision, slots_of(world, "cpu"), runtime.entropy)
    for generation, lost in enumerate([None, 1]):
        if generation:
            roster.failed(WorkerLost("gone"))
        roster.renew(generation)
        for at, phase in TIMES:
            clock.time = 1000.0 * (generation + 1) + at
            if lost is not None and phase is Phase.WARMUP:
                roster.exited(WorkerExit(rank=lost, incarnation=roster.incarnations[lost], signal=9))
            roster.enter(phase)
        roster.drain(True)
        roster.drain(False)
    told = [(one.slot.rank, one.restarts, one.total) for one in supervision.starts.recent()]
    assert told == [(0, 0, 45.0), (1, 0, 45.0), (0, 1, 45.0)]
    words = "ready after 45.0 s: Starting 0.5, InitDevice 0.5, Loading 40.0, Warmup 4.0"
    said = [one.getMessage() for one in caplog.records if one.name == "enginebay.status.latency"]
    assert said == [f"group-0/rank-{rank}/cpu:{rank} is {words}" for rank in (0, 1, 0)]
