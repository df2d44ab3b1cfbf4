"""Workers that die: they are started again and nothing is lost, or the engine says why once.

Every disturbed run has the tokens of the undisturbed one, gapless (``FakeEngine.step`` checks the offsets), and leaves
no block and no row behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.recovery import NoWayBack
from enginebay.engine.roster import BACK_OFF
from enginebay.errors import (
    EnginebayError,
    EngineDead,
    OutOfMemory,
    PolicyFailed,
    StartFailed,
    WorkerFailed,
    WorkerHung,
    WorkerLost,
)
from enginebay.messages import Committed, Envelope, Replies, SchedulerOutput
from enginebay.status.restarts import RestartRules
from support.mortal import DEPTHS, NUM_STEPS, Mortal, answered, deadly


def _refused(engine: Mortal, envelope: Envelope) -> Future[Replies]:
    raise WorkerLost("rank 0: the line is closed")


def _silent(engine: Mortal, envelope: Envelope) -> Future[Replies]:
    return Future()


def _reported(engine: Mortal, envelope: Envelope) -> Future[Replies]:
    engine.report()
    return Future()


HOW = [_refused, answered, _silent, _reported]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("step", range(0, NUM_STEPS, 2))
def test_a_worker_that_dies_in_a_step(how: Any, depth: int, step: int) -> None:  # R1 with a fake worker
    engine = Mortal(depth)
    deadly(engine, how, {step})
    engine.run()
    engine.check_ends()
    assert engine.incarnations == 1 + engine.generation.current
    if step < 15:
        assert engine.generation.current == 1


@given(calls=st.sets(st.integers(0, 60), max_size=15), depth=st.sampled_from(DEPTHS), how=st.sampled_from(HOW))
def test_any_deaths(calls: set[int], depth: int, how: Any) -> None:
    engine = Mortal(depth)
    deadly(engine, how, calls)
    engine.run()
    convicted = [one for one, last in engine.last.items() if last.error is not None]
    engine.check_ends(convicted)
    assert len(convicted) <= len(calls) // 3


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("nth", range(0, 40, 3))
@pytest.mark.parametrize("when", ["between two steps", "while it is scheduled", "between commit and update", "after"])
def test_a_death_that_is_reported_between_two_events(when: str, nth: int, depth: int) -> None:
    engine = Mortal(depth)
    count = -1

    def event(*_: object) -> None:
        nonlocal count
        count += 1
        if count == nth:
            engine.report()

    _listen(engine, when, event)
    while engine.core.has_work():
        if when == "between two steps":
            event()
        engine.step()
    engine.check_ends()
    assert engine.generation.current in (0, 1)
    assert engine.incarnations == 1 + engine.generation.current


def _listen(engine: Mortal, when: str, event: Callable[..., None]) -> None:
    scheduler, hooks = engine.core._scheduler, engine.hooks
    if when == "while it is scheduled":
        schedule = scheduler.schedule

        def scheduled() -> SchedulerOutput:
            event()
            return schedule()

        scheduler.schedule = scheduled  # type: ignore[method-assign]  # a moment to die in
    elif when == "between commit and update":
        update = scheduler.update_from_output

        def updated(scheduler_output: SchedulerOutput, committed: Committed) -> None:
            event()
            update(scheduler_output, committed)

        scheduler.update_from_output = updated  # type: ignore[method-assign]  # a moment to die in
    elif when == "after":
        hooks.step_finished = event  # type: ignore[method-assign]  # a moment to die in


def test_a_worker_that_does_not_answer_is_replaced_like_a_dead_one() -> None:
    engine = Mortal(step_timeout=7.0)
    deadly(engine, _silent, {3})
    engine.run()
    engine.check_ends()
    assert engine.incarnations == 2


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_dies_while_it_is_started(times: int) -> None:  # R2
    engine = Mortal()
    deadly(engine, answered, {5})
    left = times

    def dies() -> None:
        nonlocal left
        if left:
            left -= 1
            raise WorkerLost("rank 0: gone again")

    engine.in_respawn = dies
    engine.run()
    engine.check_ends()
    assert engine.generation.current == 1 + times
    assert engine.incarnations == 2 + times


@pytest.mark.parametrize(("how", "kind", "code"), [(answered, WorkerLost, 4), (_silent, WorkerHung, 5)])
def test_too_many_respawns_without_progress_are_the_death(how: Any, kind: type[EnginebayError], code: int) -> None:
    engine = Mortal(rules=RestartRules(per_slot=2), step_timeout=7.0)
    deadly(engine, how, set(range(5, 1000)))
    with pytest.raises(kind) as caught:
        engine.run()
    assert (type(caught.value), caught.value.exit_code) == (kind, code)
    assert "; more than 2 restarts within 600 s: group-0/rank-0/cpu:0 " in str(caught.value)
    assert (engine.incarnations, engine.generation.current) == (3, 2)
    assert {summary.error for summary in engine.hooks.summaries} == {str(caught.value)}
    assert [summary.request_id for summary in engine.hooks.summaries] == ["a", "b", "c"]
    assert engine.executor.stopped == 1


def test_a_good_run_between_deaths_begins_their_count_again() -> None:
    rules = RestartRules(per_slot=1, good_run=0.0)
    engine = Mortal(requests={"a": "say:abcdefgh"}, max_num_batched_tokens=64, rules=rules)
    deadly(engine, answered, set(range(1, 100, 2)))
    engine.run()
    assert engine.texts == {"a": "abcdefgh"}
    assert engine.incarnations > 8


@pytest.mark.parametrize(
    ("error", "said", "starts", "end"),
    [
        *(
            (
                kind("rank 0 failed in load_model: no file"),
                f"it failed twice in Starting in the same way ({kind.__name__}): rank 0 failed in load_model: no file",
                2,
                StartFailed,
            )
            for kind in (StartFailed, OutOfMemory, WorkerFailed, WorkerLost, WorkerHung)
        ),
        (NoWayBack("nobody has the weights"), "nobody has the weights", 1, WorkerLost),
        (KeyError("mine"), "KeyError: 'mine'", 1, WorkerLost),
    ],
)
def test_workers_that_cannot_be_started_again(
    error: Exception, said: str, starts: int, end: type[EnginebayError]
) -> None:  # R4
    """What fails in the same way start after start fails as a first start does: exit code 3."""
    engine = Mortal(rules=RestartRules())
    deadly(engine, answered, {2})

    def fails() -> None:
        raise error

    engine.in_respawn = fails
    with pytest.raises(EnginebayError) as caught:
        engine.run()
    assert (type(caught.value), type(engine.core.death())) == (end, end)
    assert caught.value.exit_code == (3 if end is StartFailed else 4)
    message = str(caught.value)
    assert message.startswith("the engine stopped: rank 0: it ended before it answered; ")
    assert message.endswith(f"; the workers could not be started again: {said}")
    assert {summary.error for summary in engine.hooks.summaries} == {message}
    assert engine.generation.current == starts


def test_without_a_respawn_a_death_is_the_end() -> None:
    engine = Mortal(respawn=None)
    deadly(engine, answered, {2})
    with pytest.raises(WorkerLost, match="it ended before it answered"):
        engine.run()
    assert (engine.incarnations, engine.generation.current) == (1, 0)


def test_a_scheduler_that_raises_a_workers_error_is_not_believed() -> None:
    engine = Mortal()

    def lies() -> SchedulerOutput:
        raise WorkerLost("so it says")

    engine.core._scheduler._scheduler.schedule = lies  # type: ignore[method-assign]  # a scheduler that errs
    with pytest.raises(PolicyFailed, match=r"schedule\(\) raised WorkerLost: so it says"):
        engine.step()
    assert engine.incarnations == 1


def test_restarts_wait_longer_each_time_and_the_halt_of_the_engine_ends_a_wait() -> None:  # R5
    engine = Mortal(rules=RestartRules(), requests={"a": "say:abcdefgh"}, max_num_batched_tokens=64)
    deadly(engine, answered, {2, 4, 6})
    waits: list[float] = []
    wait_future = engine.clock.wait_future

    def waiting(future: Any, deadline: float | None) -> Any:
        if not future.done() and deadline is not None:
            waits.append(deadline - engine.clock.time)
            if len(waits) == 2:
                engine.core._rebirth.halt()
                return None
        return wait_future(future, deadline)

    engine.clock.wait_future = waiting  # type: ignore[method-assign]  # to see what is waited for, and to halt in it
    with pytest.raises(EngineDead, match="the engine is closed; make a new one"):
        engine.run()
    assert [round(wait + 0.49) for wait in waits] == [1, 2]
    assert engine.incarnations == 3


def test_a_recovery_has_a_beginning_and_an_end_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """What is lost and void, what is waited for, and that new workers are there, with how long all of it took."""
    engine = Mortal(rules=RestartRules(), requests={"a": "say:abcdefgh"}, max_num_batched_tokens=64)
    deadly(engine, answered, {2, 4})
    over: list[bool] = []

    def starts() -> None:
        (status,) = engine.core._parts.roster.statuses()
        waits = status.condition(BACK_OFF)
        over.append(waits is None or (waits.truth, waits.message) == ("False", ""))
        engine.clock.time += 2.0

    engine.in_respawn = starts
    engine.run()
    assert over == [True, True], "the wait is over when they start"
    lost = "are lost, void: step 2; rank 0: it ended before it answered"
    first, begun, second, wait, last = caplog.messages
    assert first == f"the workers of generation 0 {lost}"
    assert begun == ("generation 1 begins with new workers, 2.0 s after the loss; ready after 2.0 s: Starting 2.0")
    assert second == f"the workers of generation 1 {lost.replace('2', '4')}"
    assert re.fullmatch(r"restart 2 of the workers follows in [01]\.\d s", wait)
    assert re.fullmatch(
        r"generation 2 begins with new workers, [23]\.\d s after the loss; ready after [23]\.\d s: Starting 2\.0", last
    )
