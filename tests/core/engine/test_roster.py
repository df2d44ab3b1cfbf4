"""How a group's workers stand in the status book through starts, ends, hangs and restarts."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.engine.roster import BACK_OFF, DEVICE_OK, PROGRESSING, Roster, slots_of
from enginebay.engine.supervision import Supervision
from enginebay.engine.verdicts import Verdict
from enginebay.errors import WorkerHung, WorkerLost
from enginebay.interfaces import WorkerExit
from enginebay.messages import Phase, RankPlace, WorkerInfo, WorkerStatus, WorldPlan
from enginebay.status.restarts import GiveUp, Restart, RestartRules
from support.clock import FakeClock, fake_runtime

TWO = WorldPlan(ranks=(RankPlace(), RankPlace(rank=1, local_rank=1)), data_parallel_index=3)


class Stopping:
    """An executor whose stop is all that is asked of it."""

    def __init__(self) -> None:
        self.stops: list[float] = []

    def stop(self, deadline: float) -> None:
        self.stops.append(deadline)


class Group:
    """A roster of two ranks, and the clock that it lives by."""

    def __init__(self, rules: RestartRules | None = None, device: str = "cpu") -> None:
        self.clock = FakeClock()
        runtime = fake_runtime(self.clock)
        self.supervision = Supervision(runtime, {}, rules=rules, epoch=7)
        self.roster = Roster(self.supervision, slots_of(TWO, device), runtime.entropy)
        self.executor: Any = Stopping()

    def stand(self, generation: int = 0) -> None:
        self.roster.renew(generation)
        for phase in (Phase.STARTING, Phase.INIT_DEVICE, Phase.LOADING, Phase.WARMUP, Phase.READY):
            self.roster.enter(phase)
            self.clock.time += 1.0

    def lose(self, rank: int, **how: Any) -> None:
        self.roster.exited(WorkerExit(rank=rank, incarnation=self.roster.incarnations[rank], **how))

    @property
    def both(self) -> tuple[WorkerStatus, ...]:
        return self.roster.statuses()

    @property
    def phases(self) -> tuple[Phase, ...]:
        return tuple(one.phase for one in self.both)


def test_a_start_stage_by_stage() -> None:
    group = Group()
    group.stand(2)
    first, second = group.both
    assert [first.slot.name, second.slot.name] == ["group-3/rank-0/cpu:0", "group-3/rank-1/cpu:1"]
    assert group.phases == (Phase.READY, Phase.READY)
    assert [stage.phase for stage in first.stages] == [Phase.STARTING, Phase.INIT_DEVICE, Phase.LOADING, Phase.WARMUP]
    assert [round(stage.ended - stage.begun) for stage in first.stages if stage.ended is not None] == [1, 1, 1, 1]
    assert (first.incarnation.epoch, first.incarnation.generation) == (7, 2)
    assert first.incarnation.id != second.incarnation.id
    assert group.supervision.book.num_illegal == 0


def test_what_workers_say_of_themselves_is_kept() -> None:
    group = Group()
    group.roster.renew(0)
    ids = group.roster.incarnations
    group.roster.connected([WorkerInfo(rank=1, local_rank=1, incarnation=ids[1], host="h", pid=41)])
    assert [one.incarnation.pid for one in group.both] == [0, 41]


@pytest.mark.parametrize(
    ("foreseen", "taken", "said"),
    [
        ("cpu", "cpu", ("True", "cpu", "")),
        ("cuda", "cuda:1", ("True", "cuda:1", "")),
        ("", "cuda:1", ("True", "cuda:1", "")),
        ("cuda", "cpu", ("False", "cpu", "it computes on cpu, and not on cuda:1 as was foreseen")),
    ],
)
def test_the_device_that_was_taken_is_said(foreseen: str, taken: str, said: tuple[str, str, str]) -> None:
    group = Group(device=foreseen)
    group.stand()
    workers = [
        WorkerInfo(rank=n, local_rank=n, incarnation=one, host="h", pid=40 + n, device=taken)
        for n, one in enumerate(group.roster.incarnations)
    ]
    group.roster.found(workers)
    condition = group.both[1].condition(DEVICE_OK)
    assert condition is not None
    assert (condition.truth, condition.reason, condition.message) == said
    assert group.both[1].slot.name == f"group-3/rank-1/{foreseen or 'device'}:1"


def test_a_stop_that_was_asked_for_is_a_success() -> None:
    group = Group()
    group.stand()
    group.roster.stop(group.executor, 200.0)
    assert group.executor.stops == [200.0]
    assert [(one.phase, one.reason) for one in group.both] == [(Phase.SUCCEEDED, "Stopped")] * 2
    assert all(entry.record.finished for entry in group.supervision.book.entries())
    group.roster.stop(group.executor, 201.0)
    assert group.phases == (Phase.SUCCEEDED, Phase.SUCCEEDED)
    assert group.supervision.book.num_illegal == 0


def test_a_rank_that_is_lost_takes_the_others_along() -> None:  # T9, T10, R6
    group = Group()
    group.stand()
    group.lose(1, signal=9, last_log_lines=("out of luck",))
    assert group.phases == (Phase.READY, Phase.RECLAIMING)
    assert group.roster.lost(WorkerLost("rank 1: gone")) == Restart(after=0.0, number=1)
    group.roster.stop(group.executor, 200.0)
    first, second = group.both
    assert (first.phase, first.reason, first.message) == (Phase.FAILED, "Lost", "rank 1: gone")
    assert (second.phase, second.reason, second.signal) == (Phase.FAILED, "SIGKILL", 9)
    assert second.message == "rank 1: the worker ended (signal 9); last log lines: out of luck"
    group.stand(1)
    assert [(one.phase, one.restarts) for one in group.both] == [(Phase.READY, 1)] * 2
    assert len(group.supervision.book.entries()) == 2
    assert group.supervision.book.num_illegal == 0


def test_what_ends_of_a_fault_has_not_succeeded() -> None:
    group = Group()
    group.stand()
    group.roster.failed(WorkerHung("rank 0 hangs"))
    group.roster.stop(group.executor, 200.0)
    assert [(one.phase, one.reason, one.message) for one in group.both] == [(Phase.FAILED, "Lost", "rank 0 hangs")] * 2


def test_what_is_said_late_of_one_that_has_ended_is_no_fault() -> None:
    group = Group()
    group.roster.renew(0)
    group.roster.enter(Phase.STARTING)
    group.lose(0, exit_code=1)
    group.roster.enter(Phase.READY)
    assert group.phases == (Phase.RECLAIMING, Phase.READY)
    old = group.roster.incarnations[0]
    group.roster.stop(group.executor, 200.0)
    group.roster.renew(1)
    group.roster.exited(WorkerExit(rank=0, incarnation=old, exit_code=1))
    assert group.phases == (Phase.PENDING, Phase.PENDING)
    assert group.supervision.book.num_illegal == 0


def test_a_hang_and_a_wait_are_said() -> None:
    group = Group()
    group.stand()
    group.roster.hung("rank 0 has been in execute_model for 9 s")
    group.roster.back_off(Restart(after=4.0, number=3), "rank 0 has been in execute_model")
    (status, _) = group.both
    hung, waits = status.condition(PROGRESSING), status.condition(BACK_OFF)
    assert hung is not None
    assert waits is not None
    assert (hung.truth, hung.reason, hung.message) == ("False", "Hung", "rank 0 has been in execute_model for 9 s")
    assert waits.message == "restart 3 follows in 4 s: rank 0 has been in execute_model"
    group.roster.waited()
    over = group.both[0].condition(BACK_OFF)
    assert over is not None
    assert (over.truth, over.reason, over.message) == ("False", "Over", "")


def test_its_lines_in_the_log_name_it_where_there_are_others() -> None:
    group = Group()
    assert group.roster.label == ""
    Roster(group.supervision, slots_of(TWO, "cpu"), fake_runtime(group.clock).entropy)  # of a swap: the same group
    assert group.roster.label == ""
    Roster(group.supervision, slots_of(WorldPlan(), "cpu"), fake_runtime(group.clock).entropy)
    assert group.roster.label == "group 3: "


def test_a_rank_that_is_late_is_degraded_until_its_answer_comes() -> None:
    group = Group()
    group.stand()
    group.roster.late({1: (Verdict.STARVED, "rank 1 has no processor")})
    assert group.phases == (Phase.READY, Phase.DEGRADED)
    late = group.both[1]
    said = late.condition(PROGRESSING)
    assert said is not None
    assert (late.reason, late.message) == (said.reason, said.message) == ("Starved", "rank 1 has no processor")
    assert (said.truth, late.condition("Ready").truth) == ("Unknown", "False")  # type: ignore[union-attr]  # each has one
    group.roster.late({0: (Verdict.SLOW, "rank 0 computes")})
    assert group.phases == (Phase.DEGRADED, Phase.READY)
    group.roster.late({})
    assert group.phases == (Phase.READY, Phase.READY)
    assert [one.condition(PROGRESSING).reason for one in group.both] == ["InTime", "InTime"]  # type: ignore[union-attr]  # each has one


def test_one_that_is_late_can_be_lost_and_drain() -> None:
    group = Group()
    group.stand()
    group.roster.late({0: (Verdict.SLOW, "x")})
    group.clock.time += 700.0
    group.lose(0, signal=9)
    group.roster.lost(WorkerLost("x"))
    group.roster.late({})  # too late for the one that is gone
    assert group.phases[0] is Phase.RECLAIMING
    group.roster.stop(group.executor, 5.0)
    assert group.phases == (Phase.FAILED, Phase.FAILED)
    group.stand(1)
    group.roster.drain(True)
    group.roster.late({0: (Verdict.SLOW, "x")})
    assert group.phases == (Phase.DRAINING, Phase.DRAINING)


def test_draining_is_of_those_that_run() -> None:
    group = Group()
    group.roster.renew(0)
    group.roster.drain(True)
    assert group.phases == (Phase.PENDING, Phase.PENDING)
    group.stand()
    group.roster.drain(True)
    assert group.phases == (Phase.DRAINING, Phase.DRAINING)
    group.roster.drain(False)
    assert group.phases == (Phase.READY, Phase.READY)
    assert group.supervision.book.num_illegal == 0


def test_a_start_that_fails_twice_in_the_same_way_is_the_last() -> None:  # R4
    group = Group()
    for generation in range(2):
        group.roster.renew(generation)
        group.roster.enter(Phase.LOADING)
        group.lose(1, exit_code=3)
        verdict = group.roster.lost(WorkerLost("rank 1: gone"))
        group.roster.stop(group.executor, 200.0)
    assert verdict == GiveUp(why="it failed twice in Loading in the same way (ExitCode3)", at_start=True)


@pytest.mark.parametrize("good", [True, False])
def test_a_good_run_is_counted_from_readiness(good: bool) -> None:  # R5
    group = Group(RestartRules(per_slot=1, window=10_000.0))
    verdicts = []
    for generation in range(2):
        group.stand(generation)
        group.clock.time += 700.0 if good else 500.0
        verdicts.append(type(group.roster.lost(WorkerHung("rank 0 hangs"))))
        group.roster.stop(group.executor, 200.0)
    assert verdicts == [Restart, Restart if good else GiveUp]
