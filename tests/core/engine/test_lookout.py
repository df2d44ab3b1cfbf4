"""Signs of life: the table from evidence to verdict, and a wait under a fake clock that looks no more than it must."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from enginebay.engine.lookout import Lookout, Verdict, announced, busy, describe, judge
from enginebay.engine.watch import WorkerWatch
from enginebay.errors import WorkerHung, WorkerLost
from enginebay.interfaces import ExecutorHealth, RankHealth, WorkerExit
from enginebay.messages import Replies
from enginebay.runtime import Entropy, Runtime
from simulation.clock import SimClock

HEARTBEAT = 5.0
LIMIT = 15.0
REPLIES = Replies(generation=0, call_id=1, replies=())


def rank(state: str = "running", age: float = 100.0, phase: str = "execute_model", step: int = 41) -> RankHealth:
    return RankHealth(rank=1, phase=phase, step=step, age=age, state=state)


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
        # busy or starved, however long: its step has a deadline of its own  # X6
        (rank("running", age=4000.0), 4000.0, rank("running"), Verdict.FINE),
        (rank("", age=4000.0), 4000.0, rank(""), Verdict.FINE),
        # ended: the executor reports that
        (rank("gone"), 20.0, rank("gone"), Verdict.FINE),
        (rank("gone"), 20.0, rank("stopped"), Verdict.FINE),
    ],
)
def test_verdicts(now: RankHealth, waited: float, before: RankHealth | None, verdict: Verdict) -> None:
    assert judge(now, waited, before, limit=LIMIT) is verdict


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
    ],
)
def test_what_is_left_of_what_was_announced(budgets: list[tuple[float, float]], left: float) -> None:  # X6
    ranks = [RankHealth(rank=i, budget=budget, age=age) for i, (budget, age) in enumerate(budgets)]
    assert announced(ranks) == left


class _Executor:
    """Says what the script says, by the clock, and counts how often it is asked."""

    def __init__(self, clock: SimClock, state: Callable[[float], str]) -> None:
        self.clock, self.state = clock, state
        self.asked: list[float] = []
        self.says_ranks = True
        self.broken = False

    def health(self) -> ExecutorHealth:
        self.asked.append(self.clock.time)
        ranks = (
            RankHealth(rank=0, phase="idle", age=self.clock.time, state="running"),
            RankHealth(rank=1, phase="execute_model", step=7, age=self.clock.time, state=self.state(self.clock.time)),
        )
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
    return Lookout(watch, executor, runtime, heartbeat=HEARTBEAT), executor, clock, watch  # type: ignore[arg-type]  # the part that is asked


def test_an_answer_within_a_heartbeat_is_looked_at_by_nobody() -> None:
    eye, executor, clock, _ = lookout(lambda now: "running")
    future: Future[Replies] = Future()
    clock.at(clock.time + HEARTBEAT - 0.1, lambda: future.set_result(REPLIES))
    assert eye.wait(future, clock.time + 300) == REPLIES
    assert executor.asked == []


def test_a_slow_step_is_looked_at_once_a_second_and_left_alone() -> None:  # X6
    eye, executor, clock, _ = lookout(lambda now: "running")
    future: Future[Replies] = Future()
    begun = clock.time
    clock.at(begun + 60.0, lambda: future.set_result(REPLIES))
    assert eye.wait(future, begun + 300) == REPLIES
    assert [round(at - begun, 6) for at in executor.asked] == [float(second) for second in range(5, 60)]


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


def test_a_stopped_worker_is_hung_after_three_heartbeats(caplog: pytest.LogCaptureFixture) -> None:  # X5
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
