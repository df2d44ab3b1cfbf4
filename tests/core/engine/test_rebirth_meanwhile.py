"""What goes on while workers are started again, and how the fresh scheduler is filled."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from enginebay.errors import EngineDead, InvalidRequest, PolicyFailed, WorkerLost
from enginebay.interfaces import NoOptions, PolicyState, RequestView, SchedulerContext
from enginebay.messages import EngineRequest, Envelope, FinishReason, Replies
from enginebay.scheduling import MechanicsScheduler
from support.fake_engine import Arrival
from support.mortal import EXPECTED, Mortal, answered, deadly, failed


def test_requests_come_back_in_order_of_arrival() -> None:  # R7
    engine = Mortal(2)
    deadly(engine, answered, {4})
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
    deadly(engine, answered, {8})
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
    deadly(engine, answered, {3})
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
    deadly(engine, answered, {2})

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
    deadly(engine, answered, {3, 4})  # the second time, nothing is computed that was not computed before

    def long() -> None:
        engine.clock.time += 500

    engine.in_respawn = long
    engine.run()
    assert engine.tokens == EXPECTED
    assert engine.incarnations == 3


def test_late_news_of_the_old_workers_say_nothing_of_the_new_ones() -> None:
    engine = Mortal()
    deadly(engine, answered, {3})
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
    deadly(engine, answered, {2})
    engine.step()
    engine.core.stop_by(engine.clock.time + 5)
    with pytest.raises(WorkerLost):
        engine.run()
    assert engine.incarnations == 1


def test_an_engine_that_is_stopped_while_its_workers_are_started() -> None:
    engine = Mortal()
    deadly(engine, answered, {2})
    engine.in_respawn = engine.core.cut
    with pytest.raises(EngineDead, match=r"^the engine is closed; make a new one$"):
        engine.run()
    assert engine.incarnations == 2
    assert engine.executor.stopped == 2  # by the cut, and when the respawn had returned


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
    with pytest.raises(PolicyFailed, match=r"add_request\(\) raised KeyError: 'mine'"):
        engine.step()
