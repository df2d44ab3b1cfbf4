"""A wait for workers under a fake clock: it looks no more than it must, and ends nobody for being slow."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from enginebay.engine.lookout import Lookout
from enginebay.engine.verdicts import Pace, Verdict, busy, describe
from enginebay.engine.watch import WorkerWatch
from enginebay.errors import WorkerHung, WorkerLost
from enginebay.interfaces import ExecutorHealth, RankHealth, WorkerExit
from enginebay.messages import Replies, SchedulerOutput
from enginebay.runtime import Entropy, Runtime
from simulation.clock import SimClock

HEARTBEAT = 5.0
LIMIT = 15.0
REPLIES = Replies(generation=0, call_id=1, replies=())


class _Executor:
    """Says what the script says, by the clock, and counts how often it is asked."""

    def __init__(self, clock: SimClock, state: Callable[[float], str]) -> None:
        self.clock, self.state = clock, state
        self.asked: list[float] = []
        self.says_ranks = True
        self.broken = False
        self.pace = Pace()
        self.late: list[tuple[float, dict[int, Verdict]]] = []
        self.scheduled: Callable[[float], tuple[float, float]] = lambda now: (-1.0, -1.0)

    def health(self) -> ExecutorHealth:
        now = self.clock.time
        self.asked.append(now)
        ran, queued = self.scheduled(now)
        busy = RankHealth(rank=1, phase="execute_model", step=7, age=now, state=self.state(now), ran=ran, queued=queued)
        ranks = (RankHealth(rank=0, phase="idle", age=now, state="running"), busy)
        return ExecutorHealth(alive=True, ranks=ranks if self.says_ranks else ())

    def stacks(self, deadline: float) -> dict[int, str]:
        if self.broken:
            raise OSError("no signals here")
        return {0: 'File "a.py", line 1 in b'}


def lookout(state: Callable[[float], str], **changes: Any) -> tuple[Lookout, _Executor, SimClock, WorkerWatch]:
    clock, watch = SimClock(), WorkerWatch()
    executor = _Executor(clock, state)
    vars(executor).update(changes)
    runtime = Runtime(clock=clock, transport=None, spawner=None, entropy=Entropy(0))  # type: ignore[arg-type]  # not used
    eye = Lookout(
        watch,
        executor,  # type: ignore[arg-type]  # the part that is asked
        runtime,
        heartbeat=HEARTBEAT,
        pace=executor.pace,
        late=lambda ranks: executor.late.append((clock.time, {rank: how for rank, (how, _) in ranks.items()})),
    )
    return eye, executor, clock, watch


def test_an_answer_within_a_heartbeat_is_looked_at_by_nobody() -> None:
    eye, executor, clock, _ = lookout(lambda now: "running")
    future: Future[Replies] = Future()
    clock.at(clock.time + HEARTBEAT - 0.1, lambda: future.set_result(REPLIES))
    assert eye.wait(future, clock.time + 300) == REPLIES
    assert executor.asked == []


def test_who_serves_clients_meanwhile_has_its_first_turn_within_a_second() -> None:  # R7
    _, executor, clock, watch = lookout(lambda now: "running")
    served: list[float] = []
    runtime = Runtime(clock=clock, transport=None, spawner=None, entropy=Entropy(0))  # type: ignore[arg-type]  # not used
    begun = clock.time
    eye = Lookout(
        watch,
        executor,  # type: ignore[arg-type]  # the part that is asked
        runtime,
        heartbeat=HEARTBEAT,
        meanwhile=lambda: served.append(clock.time - begun),
    )
    future: Future[Replies] = Future()
    clock.at(begun + 3.5, lambda: future.set_result(REPLIES))
    assert eye.wait(future, begun + 300) == REPLIES
    assert [round(at, 6) for at in served] == [1.0, 2.0, 3.0]


def test_a_slow_step_is_looked_at_once_a_second_and_left_alone() -> None:  # X6, R8
    eye, executor, clock, _ = lookout(lambda now: "running")
    future: Future[Replies] = Future()
    begun = clock.time
    clock.at(begun + 60.0, lambda: future.set_result(REPLIES))
    assert eye.wait(future, begun + 300) == REPLIES
    assert [round(at - begun, 6) for at in executor.asked] == [float(second) for second in range(5, 60)]


STEP = SchedulerOutput(step=7, num_scheduled_tokens={"a": 3, "b": 1})


@pytest.mark.parametrize(
    ("scheduled", "how"),
    [
        (lambda now: (now, 0.0), Verdict.SLOW),
        (lambda now: (0.0, now), Verdict.STARVED),
        (lambda now: (3.0, 4.0), Verdict.BLOCKED),
        (lambda now: (-1.0, -1.0), Verdict.SLOW),
    ],
)
def test_a_step_that_takes_long_is_said_and_so_is_that_it_came(
    scheduled: Callable[[float], tuple[float, float]], how: Verdict
) -> None:
    eye, executor, clock, _ = lookout(lambda now: "running", scheduled=scheduled)
    executor.pace.took(4, 0.6)  # so that six seconds are expected
    future, begun = Future[Replies](), clock.time
    clock.at(begun + 8.5, lambda: future.set_result(REPLIES))
    assert eye.wait(future, begun + 300, STEP) == REPLIES
    assert executor.late == [(begun + 7.0, {1: how}), (begun + 8.0, {1: how}), (begun + 8.5, {})]


def test_nothing_is_said_of_a_step_in_time_or_of_another_call() -> None:
    for seconds, step in ((4.9, STEP), (5.9, STEP), (60.0, None)):
        eye, executor, clock, _ = lookout(lambda now: "running")
        future, begun = Future[Replies](), clock.time
        clock.at(begun + seconds, lambda future=future: future.set_result(REPLIES))  # type: ignore[misc]  # no type for a default
        assert eye.wait(future, begun + 300, step) == REPLIES
        assert executor.late == []


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("allowed", [3.0, 10.0, 60.0])
def test_time_without_a_processor_is_not_the_workers_own(share: float, allowed: float) -> None:
    eye, _, clock, _ = lookout(lambda now: "running", scheduled=lambda now: ((1 - share) * now, share * now))
    begun = clock.time
    with pytest.raises(TimeoutError):
        eye.wait(Future(), begun + allowed, STEP)
    first = min(HEARTBEAT, allowed / 2)  # before it nobody has looked
    own = allowed - (clock.time - begun - first) * (1 - share) - first
    assert -(1 - share) * 1.0 - 0.1 < own < 0.1  # with one more look a second later


@pytest.mark.parametrize("grain", [0.001, 0.3, 0.9])
def test_one_that_never_has_a_processor_is_never_ended(grain: float) -> None:
    # the kernel counts a wait when it is over
    eye, executor, clock, _ = lookout(lambda now: "running", scheduled=lambda now: (0.0, now // grain * grain))
    future, begun = Future[Replies](), clock.time
    clock.at(begun + 3600.0, lambda: future.set_result(REPLIES))
    assert eye.wait(future, begun + 10, STEP) == REPLIES
    assert {how for _, late in executor.late for how in late.values()} == {Verdict.STARVED}


def test_what_a_worker_announces_is_waited_for_and_no_longer() -> None:  # X6
    for comes, budget in ((70.0, 90.0), (95.0, 90.0), (70.0, 0.0)):
        eye, executor, clock, _ = lookout(lambda now: "running")
        begun, real = clock.time, executor.health

        def health(real: Callable[[], ExecutorHealth] = real, budget: float = budget) -> ExecutorHealth:
            told = real()
            return dataclasses.replace(told, ranks=tuple(dataclasses.replace(r, budget=budget) for r in told.ranks))

        executor.health = health  # type: ignore[method-assign]  # what else this executor says
        future: Future[Replies] = Future()
        clock.at(begun + comes, lambda future=future: future.set_result(REPLIES))  # type: ignore[misc]  # no type for a default
        if comes < budget:
            assert eye.wait(future, begun + 20) == REPLIES
        else:
            with pytest.raises(TimeoutError):
                eye.wait(future, begun + 20)
            assert round(clock.time - begun, 6) == max(20.0, budget - begun)


def test_a_stopped_worker_is_hung_after_three_heartbeats(caplog: pytest.LogCaptureFixture) -> None:  # X5, R8
    eye, _, clock, _ = lookout(lambda now: "stopped" if now > 3 else "running")
    begun = clock.time
    with caplog.at_level(logging.ERROR), pytest.raises(WorkerHung) as caught:
        eye.wait(Future(), begun + 300)
    assert str(caught.value) == (
        "rank 1 has been in execute_model of step 7 for 16 s (its process is stopped): "
        "no sign of life for 3 x [deadlines] heartbeat"
    )
    assert round(clock.time - begun, 6) == LIMIT
    assert caplog.messages == ['rank 0 stands here:\nFile "a.py", line 1 in b']


def test_one_that_is_stopped_for_a_while_is_not_hung() -> None:
    eye, _, clock, _ = lookout(lambda now: "stopped" if 3 < now < 15 else "running")
    future: Future[Replies] = Future()
    clock.at(clock.time + 40.0, lambda: future.set_result(REPLIES))
    assert eye.wait(future, clock.time + 300) == REPLIES


def test_our_own_lateness_is_not_the_workers() -> None:
    eye, executor, clock, _ = lookout(lambda now: "stopped")
    begun = clock.time
    real = executor.health

    def late_once() -> ExecutorHealth:
        if not executor.asked:
            clock.time += 100.0  # the whole machine stood still, or we did
        return real()

    executor.health = late_once  # type: ignore[method-assign]  # a clock that jumps
    with pytest.raises(WorkerHung):
        eye.wait(Future(), begun + 300)
    assert clock.time - begun >= 100 + LIMIT - HEARTBEAT


@pytest.mark.parametrize("stands", [2.0, 7.0, 9.5])
@pytest.mark.parametrize("says", [True, False], ids=["says", "does not say"])
def test_an_answer_that_came_while_we_stood_still_counts(stands: float, says: bool) -> None:  # X6
    eye, _, clock, _ = lookout(lambda now: "running", says_ranks=says)
    begun, future = clock.time, Future[Replies]()

    def stand_still() -> None:
        clock.time += 100.0
        clock.at(clock.time + 0.5, lambda: future.set_result(REPLIES))  # it is read when we go on

    clock.at(begun + stands, stand_still)
    assert eye.wait(future, begun + 10) == REPLIES


def test_standing_still_moves_the_deadline_and_does_not_take_it_away() -> None:
    eye, _, clock, _ = lookout(lambda now: "running")
    begun = clock.time
    clock.at(begun + 2, lambda: vars(clock).update(time=clock.time + 100))
    with pytest.raises(TimeoutError):
        eye.wait(Future(), begun + 10)
    assert begun + 100 <= clock.time <= begun + 110


def test_an_answer_between_the_end_of_a_wait_and_the_look_after_it_counts() -> None:
    eye, _, clock, watch = lookout(lambda now: "running")
    future, wait = Future[Replies](), watch.wait

    def just_too_late(*arguments: Any) -> Replies:
        try:
            return wait(*arguments)
        except TimeoutError:
            future.set_result(REPLIES)
            raise

    watch.wait = just_too_late  # type: ignore[method-assign]  # another thread's answer, at this very moment
    assert eye.wait(future, clock.time + 3) == REPLIES


def test_the_deadline_holds_whatever_is_seen() -> None:
    for state in ("running", "stopped"):
        eye, executor, clock, _ = lookout(lambda now, state=state: state)  # type: ignore[misc]  # no type for a default
        begun = clock.time
        with pytest.raises(TimeoutError):
            eye.wait(Future(), begun + 10)
        assert clock.time == begun + 10
        assert executor.asked
        assert eye.who() == describe(busy(executor.health().ranks)[0])


@pytest.mark.parametrize("comes", [True, False])
def test_an_answer_that_was_given_and_has_not_arrived_is_waited_for_a_moment(comes: bool) -> None:
    eye, executor, clock, _ = lookout(lambda now: "running")
    idle = ExecutorHealth(alive=True, ranks=(RankHealth(rank=0, phase="idle"), RankHealth(rank=1, phase="idle")))
    executor.health = lambda: idle  # type: ignore[method-assign]  # both have answered
    future, begun = Future[Replies](), clock.time
    if comes:
        clock.at(begun + 10.9, lambda: future.set_result(REPLIES))
        assert eye.wait(future, begun + 10, STEP) == REPLIES
    else:
        with pytest.raises(TimeoutError):
            eye.wait(future, begun + 10, STEP)
        assert clock.time == begun + 11.0


def test_an_executor_that_does_not_say_is_asked_once() -> None:
    eye, executor, clock, _ = lookout(lambda now: "stopped", says_ranks=False)
    with pytest.raises(TimeoutError):
        eye.wait(Future(), clock.time + 300)
    assert len(executor.asked) == 1


def test_a_death_is_told_at_once() -> None:
    eye, _, clock, watch = lookout(lambda now: "running")
    begun = clock.time
    clock.at(begun + 30.5, lambda: watch.exited(WorkerExit(rank=1, incarnation="x", signal=9)))
    with pytest.raises(WorkerLost, match=r"^rank 1: the worker ended \(signal 9\)$"):
        eye.wait(Future(), begun + 300)
    assert clock.time == begun + 30.5


def test_stacks_that_cannot_be_had_do_not_hide_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    eye, _, clock, _ = lookout(lambda now: "stopped", broken=True)
    with pytest.raises(WorkerHung, match="rank 1 has been in execute_model of step 7"):
        eye.wait(Future(), clock.time + 300)
    assert "the workers' stacks cannot be had: OSError: no signals here" in caplog.messages


def test_an_answer_that_is_a_timeout_is_passed_on() -> None:
    eye, _, clock, _ = lookout(lambda now: "running")
    future: Future[Replies] = Future()
    future.set_exception(TimeoutError("the executor's own"))
    with pytest.raises(TimeoutError, match="the executor's own"):
        eye.wait(future, clock.time + 300)
