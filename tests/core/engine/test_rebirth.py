"""Failed steps and dead workers: nothing is lost, nothing comes twice, and an engine that cannot go on says why once.

Every disturbed run has the tokens of the undisturbed one, gapless (``FakeEngine.step`` checks the offsets), and leaves
no block and no row behind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.watch import WorkerWatch
from enginebay.errors import (
    EnginebayError,
    EngineDead,
    InvalidRequest,
    OutOfMemory,
    PolicyFailed,
    StartFailed,
    WorkerFailed,
    WorkerHung,
    WorkerLost,
)
from enginebay.interfaces import NoOptions, PolicyState, RequestView, SchedulerContext, WorkerExit
from enginebay.messages import Committed, EngineRequest, Envelope, FinishReason, RankReply, Replies, SchedulerOutput
from enginebay.scheduling import MechanicsScheduler
from enginebay.transport import encode
from enginebay.worker import RequestTable
from enginebay.worker.failure import describe_failure
from support.clock import FakeClock, fake_runtime
from support.fake_engine import DEFAULT, Arrival, FakeEngine

PROMPTS = {
    "a": "a long prompt in chunks, say:abcdefghijkl",
    "b": "a long prompt in chunks, say:mno",
    "c": "say:pqrstu",
}
NUM_STEPS = 22
DEPTHS = [1, 2, 3]


class Mortal(FakeEngine):
    """Three requests in chunks of 8 over workers that can be started again.

    ``incarnations`` counts the workers; ``in_respawn`` is called while one is started, and may raise.
    """

    def __init__(self, depth: int = 1, *, requests: dict[str, str] | None = None, **parts: Any) -> None:
        self.watch = WorkerWatch()
        self.clock = FakeClock()
        self.incarnations = 1
        self.seen: list[SchedulerOutput] = []
        self.in_respawn: Callable[[], None] = lambda: None
        self.lose: Callable[[Envelope, SchedulerOutput], Future[Replies] | None] = lambda envelope, output: None
        settings: dict[str, Any] = {
            "max_num_batched_tokens": 8,
            "depth": depth,
            "watch": self.watch,
            "runtime": fake_runtime(self.clock),
            "respawn": self.respawn,
        }
        super().__init__(**{**settings, **parts})
        self.watch.expect(("1",))
        self.executor.before = self.seen.append
        for request_id, prompt in (PROMPTS if requests is None else requests).items():
            self.add(request_id, prompt, max_tokens=9)

    def respawn(self) -> None:
        self.incarnations += 1
        self.watch.expect((str(self.incarnations),))
        self.in_respawn()
        self.executor.table = RequestTable()

    def report(self, incarnation: int | None = None) -> None:
        """The executor says that a worker has ended: the one that is in force, if none is named."""
        self.watch.exited(WorkerExit(rank=0, incarnation=str(incarnation or self.incarnations), signal=9))

    def fail(self, steps: set[int], error: Exception | None = None) -> None:
        """The worker raises in these steps."""

        def before(output: SchedulerOutput) -> None:
            self.seen.append(output)
            if output.step in steps:
                raise error or ValueError("boom")

        self.executor.before = before

    def check_ends(self) -> None:
        """All is done, as if nothing had happened."""
        assert self.tokens == EXPECTED
        assert self.kv.num_free_blocks == 64
        stats = self.core.stats()
        assert (stats.unfinished, stats.committed_tokens) == (0, sum(map(len, EXPECTED.values())))
        assert all(last.finish_reason is not FinishReason.ERROR for last in self.last.values())
        generations = [output.generation for output in self.seen]
        assert generations == sorted(generations)
        assert len({output.step for output in self.seen}) == len(self.seen)
        for before, first in zip(self.seen, self.seen[1:], strict=False):
            if first.generation != before.generation:
                assert (first.running, first.resumed, first.preempted, first.finished) == ((), (), (), ())
                assert first.new[0].num_computed_tokens == 0, "found in a cache what a void step computed"


def undisturbed() -> dict[str, list[int]]:
    engine = Mortal()
    engine.run()
    return engine.tokens


EXPECTED = undisturbed()


# Steps that a living worker failed


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("step", range(NUM_STEPS))
def test_one_failed_step_is_computed_again_on_the_same_worker(depth: int, step: int) -> None:  # E3
    engine = Mortal(depth)
    engine.fail({step})
    engine.run()
    engine.check_ends()
    assert engine.incarnations == 1
    happened = any(output.step == step for output in engine.seen)
    assert engine.generation.current == int(happened)
    usages = [last.usage for last in engine.last.values() if last.usage is not None]
    if step < 12:  # the last ones tell the runner who has ended, and compute nothing
        assert sum(usage.recomputed_tokens for usage in usages) > 0


@given(steps=st.sets(st.integers(0, 60), max_size=20), depth=st.sampled_from(DEPTHS))
def test_any_failed_steps(steps: set[int], depth: int) -> None:
    engine = Mortal(depth, max_failed_steps=100)
    engine.fail(steps)
    engine.run()
    engine.check_ends()


@pytest.mark.parametrize("two_phases", [False, True], ids=["one call a step", "two calls a step"])
@pytest.mark.parametrize("error", [ValueError("boom"), OutOfMemory("all is taken"), MemoryError("all is taken")])
def test_three_failures_in_a_row_are_the_death_with_one_root_cause(error: Exception, two_phases: bool) -> None:  # E2
    engine = Mortal()
    engine.executor.two_phases = two_phases
    while len(engine.tokens) < 2:
        engine.step()
    engine.fail(set(range(1000)), error)
    assert engine.core.step() == ([], True)  # something ran: nobody waits before the next one
    assert engine.core.step() == ([], True)
    with pytest.raises(EngineDead) as caught:
        engine.step()
    assert str(error) in str(caught.value)
    assert str(caught.value).startswith("the engine stopped: ")
    assert caught.value.exit_code == 70
    errors = {summary.request_id: summary.error for summary in engine.hooks.summaries}
    unfinished = PROMPTS.keys() - engine.last.keys()
    assert {request_id for request_id in errors if errors[request_id]} == unfinished
    assert {errors[request_id] for request_id in unfinished} == {str(caught.value)}
    assert (engine.executor.stopped, engine.incarnations) == (1, 1)


def test_progress_in_between_begins_the_count_again() -> None:
    engine = Mortal(requests={"a": "say:abcdefgh"}, max_num_batched_tokens=64, max_failed_steps=2)
    engine.fail(set(range(1, 100, 2)))  # each token is followed by a failure
    engine.run()
    assert engine.texts == {"a": "abcdefgh"}
    assert engine.generation.current >= 8


def test_a_failure_in_the_second_call_of_a_step() -> None:
    engine = Mortal(max_failed_steps=100)
    engine.executor.two_phases = True
    submit, count = engine.executor.submit, 0

    def failing(envelope: Envelope) -> Future[Replies]:
        nonlocal count
        future = submit(envelope)
        count += 1
        return failed(envelope, ValueError("boom")) if count in (2, 8, 13) else future

    engine.executor.submit = failing  # type: ignore[method-assign]  # a runner that errs in sample_tokens
    engine.run()
    engine.check_ends()
    assert engine.generation.current == 3


def test_a_void_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    engine = Mortal(2)
    engine.fail({7})
    with caplog.at_level(logging.INFO, logger="enginebay"):
        engine.run()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("generation 1 begins, void: step 7, 8; rank 0 (pid ")
    assert record.getMessage().endswith("failed in execute_model: ValueError: boom")


# Workers that die


def failed(envelope: Envelope, error: Exception) -> Future[Replies]:
    reply = RankReply(rank=0, payload=encode(describe_failure(error, phase="execute_model", rank=0)))
    future: Future[Replies] = Future()
    future.set_result(Replies(generation=envelope.generation, call_id=envelope.call_id, replies=(reply,)))
    return future


def _refused(engine: Mortal, envelope: Envelope) -> Future[Replies]:
    raise WorkerLost("rank 0: the line is closed")


def _answered(engine: Mortal, envelope: Envelope) -> Future[Replies]:
    return failed(envelope, WorkerLost("rank 0: it ended before it answered"))


def _silent(engine: Mortal, envelope: Envelope) -> Future[Replies]:
    return Future()


def _reported(engine: Mortal, envelope: Envelope) -> Future[Replies]:
    engine.report()
    return Future()


HOW = [_refused, _answered, _silent, _reported]


def deadly(engine: Mortal, how: Callable[[Mortal, Envelope], Future[Replies]], calls: set[int]) -> None:
    """The calls of these numbers meet a worker that dies of them."""
    submit, count = engine.executor.submit, -1

    def dying(envelope: Envelope) -> Future[Replies]:
        nonlocal count
        count += 1
        return how(engine, envelope) if count in calls else submit(envelope)

    engine.executor.submit = dying  # type: ignore[method-assign]  # a worker that dies


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
    engine = Mortal(depth, max_respawns=100)
    deadly(engine, how, calls)
    engine.run()
    engine.check_ends()


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
    deadly(engine, _answered, {5})
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


@pytest.mark.parametrize(("how", "kind", "code"), [(_answered, WorkerLost, 4), (_silent, WorkerHung, 5)])
def test_too_many_respawns_without_progress_are_the_death(how: Any, kind: type[EnginebayError], code: int) -> None:
    engine = Mortal(max_respawns=2)
    deadly(engine, how, set(range(5, 1000)))
    with pytest.raises(kind) as caught:
        engine.run()
    assert (type(caught.value), caught.value.exit_code) == (kind, code)
    assert (engine.incarnations, engine.generation.current) == (3, 2)
    assert {summary.error for summary in engine.hooks.summaries} == {str(caught.value)}
    assert [summary.request_id for summary in engine.hooks.summaries] == ["a", "b", "c"]
    assert engine.executor.stopped == 1


def test_progress_between_deaths_begins_their_count_again() -> None:
    engine = Mortal(requests={"a": "say:abcdefgh"}, max_num_batched_tokens=64, max_respawns=1)
    deadly(engine, _answered, set(range(1, 100, 2)))
    engine.run()
    assert engine.texts == {"a": "abcdefgh"}
    assert engine.incarnations > 8


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StartFailed("rank 0 failed in load_model: no such file"), "rank 0 failed in load_model: no such file"),
        (KeyError("mine"), "KeyError: 'mine'"),
    ],
)
def test_workers_that_cannot_be_started_again(error: Exception, said: str) -> None:
    engine = Mortal()
    deadly(engine, _answered, {2})

    def fails() -> None:
        raise error

    engine.in_respawn = fails
    with pytest.raises(WorkerLost) as caught:
        engine.run()
    message = str(caught.value)
    assert message.startswith("the engine stopped: rank 0: it ended before it answered; ")
    assert message.endswith(f"; the workers could not be started again: {said}")
    assert {summary.error for summary in engine.hooks.summaries} == {message}
    assert engine.generation.current == 1


def test_without_a_respawn_a_death_is_the_end() -> None:
    engine = Mortal(respawn=None)
    deadly(engine, _answered, {2})
    with pytest.raises(WorkerLost, match="it ended before it answered"):
        engine.run()
    assert (engine.incarnations, engine.generation.current) == (1, 0)


def test_a_scheduler_that_raises_a_workers_error_is_not_believed() -> None:
    engine = Mortal()

    def lies() -> SchedulerOutput:
        raise WorkerLost("so it says")

    engine.core._scheduler._scheduler.schedule = lies  # type: ignore[method-assign]  # a scheduler that errs
    with pytest.raises(WorkerLost):
        engine.step()
    assert engine.incarnations == 1


# What goes on meanwhile


def test_requests_come_back_in_order_of_arrival() -> None:  # R7
    engine = Mortal(2)
    deadly(engine, _answered, {4})
    while engine.incarnations == 1:
        engine.step()
    order = list(engine.core._requests.ledger)
    assert [row.request_id for row in order] == ["a", "b", "c"]
    assert [row.recoveries for row in order] == [1, 1, 1]
    engine.run()
    engine.check_ends()


@pytest.mark.parametrize("way", ["drained", "called"])
def test_an_abort_while_the_workers_are_started_is_not_undone(way: str) -> None:  # R7
    engine = Mortal()
    deadly(engine, _answered, {8})
    to_abort: list[str] = []

    def meanwhile() -> None:
        if way == "called":
            engine.core.abort(["b"])
        else:
            to_abort.append("b")

    engine.in_respawn = meanwhile
    while engine.incarnations == 1:
        outputs, _ = engine.core.step(lambda: engine.core.abort(to_abort))
        for output in outputs:
            engine.tokens.setdefault(output.request_id, []).extend(output.token_ids)
    assert (outputs[-1].request_id, outputs[-1].finish_reason) == ("b", FinishReason.ABORT)
    engine.seen.clear()
    engine.run()
    assert {new.request_id for output in engine.seen for new in output.new} == {"a", "c"}
    assert {k: engine.tokens[k] for k in "ac"} == {k: EXPECTED[k] for k in "ac"}
    assert engine.kv.num_free_blocks == 64


def test_a_request_that_comes_while_the_workers_are_started() -> None:
    engine = Mortal()
    deadly(engine, _answered, {3})
    late = ["late"]

    def drain() -> None:
        if engine.incarnations == 2 and late:
            engine.add(late.pop(), "say:here", max_tokens=4)

    while engine.incarnations == 1:
        engine.core.step(drain)
    engine.run()
    assert engine.texts["late"] == "here"
    assert {k: engine.tokens[k] for k in "abc"} == EXPECTED
    assert engine.kv.num_free_blocks == 64


def test_deadlines_go_on_counting_while_the_workers_are_started() -> None:  # R7
    engine = Mortal()
    engine.add("short", "say:x", ask={"timeout": 30.0})
    deadly(engine, _answered, {2})

    def long() -> None:
        engine.clock.time += 31

    engine.in_respawn = long
    engine.run()
    assert (engine.last["short"].finish_reason, engine.last["short"].error) == (FinishReason.ERROR, "deadline")
    assert not any(new.request_id == "short" for output in engine.seen if output.generation for new in output.new)
    assert {k: engine.tokens[k] for k in "abc"} == EXPECTED
    assert engine.kv.num_free_blocks == 64


class HoldsOnce(Arrival):
    """Admits nobody the first time that it is asked."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.asked = 0

    def admit(self, request: RequestView, state: PolicyState) -> bool:
        self.asked += 1
        return self.asked > 1


def test_the_time_of_a_start_is_no_lack_of_progress() -> None:
    engine = Mortal(policy=HoldsOnce, step_timeout=60.0)
    deadly(engine, _answered, {3, 4})  # the second time, nothing is computed that was not computed before

    def long() -> None:
        engine.clock.time += 500

    engine.in_respawn = long
    engine.run()
    assert engine.tokens == EXPECTED
    assert engine.incarnations == 3


def test_late_news_of_the_old_workers_say_nothing_of_the_new_ones() -> None:
    engine = Mortal()
    deadly(engine, _answered, {3})
    while engine.incarnations == 1:
        engine.step()
    engine.report(1)
    engine.run()
    engine.check_ends()
    assert engine.incarnations == 2


def test_late_answers_of_the_old_generation_are_dropped_and_counted() -> None:
    engine = Mortal(max_failed_steps=100)
    submit = engine.executor.submit
    old: list[Replies] = []

    def late(envelope: Envelope) -> Future[Replies]:
        future = submit(envelope)
        old.append(future.result())
        if len(old) == 4:
            return failed(envelope, ValueError("boom"))
        if len(old) in (5, 6):
            answer: Future[Replies] = Future()
            answer.set_result(old[2])
            return answer
        return future

    engine.executor.submit = late  # type: ignore[method-assign]  # an executor that is late
    engine.run()
    engine.check_ends()
    assert engine.core.stats().dropped_replies == 2
    assert engine.generation.current == 3


def test_an_engine_that_is_being_stopped_starts_nothing_again() -> None:
    engine = Mortal()
    deadly(engine, _answered, {2})
    engine.step()
    engine.core.stop_by(engine.clock.time + 5)
    with pytest.raises(WorkerLost):
        engine.run()
    assert engine.incarnations == 1


def test_an_engine_that_is_stopped_while_its_workers_are_started() -> None:
    engine = Mortal()
    deadly(engine, _answered, {2})
    engine.in_respawn = engine.core.cut
    with pytest.raises(EngineDead, match=r"^the engine is closed; make a new one$"):
        engine.run()
    assert engine.incarnations == 2
    assert engine.executor.stopped == 2  # by the cut, and when the respawn had returned


# Schedulers that are filled again


class Choosy:
    """A good whole scheduler, that does not take request b a second time."""

    def __init__(self, context: SchedulerContext[NoOptions], error: Exception) -> None:
        self._inner = MechanicsScheduler(Arrival(context), context)
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def add_request(self, request: EngineRequest) -> None:
        if request.request_id == "b" and request.committed_token_ids:
            raise self._error
        self._inner.add_request(request)


def choosy(error: Exception) -> Mortal:
    """It has failed the step after b's first token."""
    engine = Mortal(scheduler=lambda context: Choosy(context, error))
    while not engine.tokens.get("b"):
        engine.step()
    engine.fail({engine.core.stats().steps})
    return engine


def test_a_request_that_the_fresh_scheduler_refuses_ends_alone() -> None:
    engine = choosy(InvalidRequest("not you again"))
    engine.run()
    assert (engine.last["b"].finish_reason, engine.last["b"].error) == (FinishReason.ERROR, "not you again")
    assert {k: engine.tokens[k] for k in "ac"} == {k: EXPECTED[k] for k in "ac"}
    assert engine.kv.num_free_blocks == 64
    assert engine.core.stats().unfinished == 0


def test_a_scheduler_that_fails_when_it_is_filled_again_is_the_death() -> None:
    engine = choosy(KeyError("mine"))
    with pytest.raises(PolicyFailed, match=r"raised KeyError in add_request: 'mine'"):
        engine.step()


def test_a_fault_of_one_request_is_no_failed_step() -> None:
    engine = FakeEngine(max_failed_steps=1)
    engine.add("a", max_tokens=4)
    engine.add("b", max_tokens=4)
    engine.executor.faults["a"] = "logits are NaN"
    engine.run()
    assert engine.generation.current == 0
    assert engine.texts["b"] == DEFAULT[:4]


def test_an_executor_that_raises_a_workers_failure_is_taken_at_its_word() -> None:
    engine = Mortal()
    submit, calls = engine.executor.submit, 0

    def failing(envelope: Envelope) -> Future[Replies]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise WorkerFailed("rank 0 failed in execute_model: no more")
        return submit(envelope)

    engine.executor.submit = failing  # type: ignore[method-assign]  # an executor that refuses a call
    engine.run()
    engine.check_ends()
    assert engine.incarnations == 1


# The queue of steps


@pytest.mark.parametrize("depth", DEPTHS)
def test_steps_are_sent_ahead_and_committed_in_order(depth: int) -> None:  # E3
    engine = Mortal(depth, requests={"a": "say:abcdefghij", "b": "say:klmnopqrst"}, max_num_batched_tokens=64)
    waited: list[tuple[int, int]] = []
    wait = engine.core._execution.wait

    def waiting(flight: Any) -> Any:
        waited.append((flight.step, engine.seen[-1].step))
        return wait(flight)

    engine.core._execution.wait = waiting  # type: ignore[method-assign]  # to look at the queue
    engine.run()
    assert [step for step, _ in waited] == [report.step for report in engine.hooks.steps] == list(range(len(waited)))
    ahead = [newest - step for step, newest in waited]
    assert max(ahead) == depth - 1
    assert ahead[: 9 - depth] == [depth - 1] * (9 - depth)
    assert engine.texts == {"a": "abcdefghi", "b": "klmnopqrs"}


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("error", [ValueError("boom"), WorkerLost("gone")], ids=["fails", "dies"])
def test_of_a_step_that_is_void_the_ones_behind_it_are_void_too(error: Exception, depth: int) -> None:  # E3
    """Their answers are good, and count for nothing: N + 1 is never committed without N."""
    engine = Mortal(depth, requests={"a": "say:abcdefghij", "b": "say:klmnopqrst"}, max_num_batched_tokens=64)
    submit = engine.executor.submit

    def computed_and_lost(engine: Mortal, envelope: Envelope) -> Future[Replies]:
        submit(envelope)
        return failed(envelope, error)

    deadly(engine, computed_and_lost, {4})
    while engine.generation.current == 0:
        engine.step()
    assert [output.step for output in engine.seen] == list(range(4 + depth))
    assert [report.step for report in engine.hooks.steps] == [0, 1, 2, 3]
    assert engine.tokens == {"a": [*b"abcd"], "b": [*b"klmn"]}
    assert not engine.core._pipeline.in_flight
    engine.run()
    after = [report.step for report in engine.hooks.steps][4:]
    assert after == list(range(4 + depth, 4 + depth + len(after)))
    first = next(output for output in engine.seen if output.generation == 1)
    assert [(new.request_id, bytes(new.token_ids)) for new in first.new] == [
        ("a", b"say:abcdefghijabcd"),
        ("b", b"say:klmnopqrstklmn"),
    ]
    assert engine.texts == {"a": "abcdefghi", "b": "klmnopqrs"}
