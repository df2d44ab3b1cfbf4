"""An engine that turns and gets nowhere dies of it, with the name of the part that is at fault."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

import msgspec
import pytest

from enginebay.engine.progress import MAX_WASTED_STEPS
from enginebay.errors import EngineDead, PolicyFailed
from enginebay.interfaces import NoOptions, PolicyState, RequestView, Scheduler, SchedulerContext
from enginebay.messages import FinishReason, ModelRunnerOutput, NewRequest, SchedulerOutput
from enginebay.scheduling import MechanicsScheduler
from support.clock import FakeClock, fake_runtime
from support.fake_engine import Arrival, FakeEngine


def run_to_death(engine: FakeEngine, most: int = 3 * MAX_WASTED_STEPS) -> tuple[EngineDead, int]:
    """Steps until the engine dies; the error, and after how many."""
    for count in range(most):
        try:
            engine.core.step()
        except EngineDead as error:
            return error, count
    raise AssertionError(f"it still turns after {most} steps")


def silent(engine: FakeEngine, *request_ids: str) -> None:
    """Let the runner draw nothing for these requests (none named: for all)."""
    step = engine.executor._step

    def spoiled(call: Any) -> ModelRunnerOutput:
        output = step(call)
        assert output is not None
        rows = zip(output.request_ids, output.sampled_token_ids, strict=True)
        drawn = tuple(() if not request_ids or one in request_ids else tokens for one, tokens in rows)
        return msgspec.structs.replace(output, sampled_token_ids=drawn)

    engine.executor._step = spoiled  # type: ignore[method-assign]  # a runner that errs


def test_a_runner_that_never_draws() -> None:
    engine = FakeEngine()
    silent(engine)
    engine.add("a")
    error, _ = run_to_death(engine)
    assert type(error) is EngineDead
    assert "runner 'fake' 1.0 drew no token" in str(error)
    assert engine.executor.stopped == 1


def test_a_runner_that_starves_one_request_while_the_others_go_on() -> None:
    engine = FakeEngine(max_model_len=3 * MAX_WASTED_STEPS, num_blocks=2 * MAX_WASTED_STEPS)
    silent(engine, "a")
    engine.add("b", max_tokens=2 * MAX_WASTED_STEPS)
    engine.add("a")
    error, _ = run_to_death(engine)
    assert str(error) == (
        "the engine stopped: runner 'fake' 1.0 drew no token for request 'a' "
        f"in {MAX_WASTED_STEPS} steps in a row, each of which had to draw one"
    )


def test_a_step_whose_answer_was_dropped_begins_the_count_of_one_that_is_starved_again() -> None:
    many = 4 * MAX_WASTED_STEPS
    engine = FakeEngine(max_model_len=many, num_blocks=many, max_num_batched_tokens=many)
    silent(engine, "a")
    engine.add("b", max_tokens=3 * MAX_WASTED_STEPS)
    engine.add("a")
    dropped = MAX_WASTED_STEPS - 10

    def before(output: SchedulerOutput) -> None:
        engine.executor.reply_generation = 77 if output.step == dropped else None

    engine.executor.before = before
    _, count = run_to_death(engine)
    assert count == dropped + MAX_WASTED_STEPS


def test_a_fault_without_words_ends_its_request() -> None:
    engine = FakeEngine()
    engine.executor.faults["a"] = ""
    engine.add("a")
    engine.add("b", max_tokens=3)
    engine.run(20)
    assert engine.last["a"].finish_reason is FinishReason.ERROR
    assert engine.last["a"].error == "runner 'fake' 1.0 failed it, and did not say why"
    assert engine.tokens["b"] == [*b"the"]


def test_an_executor_that_only_answers_for_another_generation() -> None:
    engine = FakeEngine()
    engine.executor.reply_generation = -1
    engine.add("a")
    error, count = run_to_death(engine)
    assert type(error) is EngineDead
    assert "executor 'fake' 1.0 answered" in str(error)
    assert count == MAX_WASTED_STEPS  # the first one sent a prompt to be computed: it is not held against it
    assert engine.core.stats().dropped_replies == MAX_WASTED_STEPS + 1


class Whole(Scheduler[NoOptions]):
    """A whole scheduler that returns the same step again and again."""

    def __init__(self, context: SchedulerContext[NoOptions], make: Callable[[], SchedulerOutput]) -> None:
        super().__init__(context)
        self._inner = MechanicsScheduler(Arrival(context), context)
        self._make = make

    def add_request(self, request: Any) -> None:
        self._inner.add_request(request)

    def finish_requests(self, request_ids: Any, status: Any) -> None:
        """It does not care."""

    def schedule(self) -> SchedulerOutput:
        return self._make()

    def update_from_output(self, scheduler_output: Any, committed: Any) -> None:
        """It does not care."""

    def preempt_all(self) -> None:
        """It does not care."""

    def has_requests(self) -> bool:
        return True

    def make_stats(self) -> Any:
        return self._inner.make_stats()


def test_a_scheduler_whose_steps_run_nothing() -> None:
    class GivesWay(Whole):
        """Lets a request begin, and then give way in each step."""

        def __init__(self, context: SchedulerContext[NoOptions]) -> None:
            steps = chain([self.begin], repeat(lambda: SchedulerOutput(step=0, preempted=("a",))))
            super().__init__(context, lambda: next(steps)())

        def begin(self) -> SchedulerOutput:
            return self._inner.schedule()

    engine = FakeEngine(scheduler=GivesWay)
    engine.add("a")
    error, _ = run_to_death(engine)
    assert type(error) is PolicyFailed
    assert str(error) == (
        f"{MAX_WASTED_STEPS} steps in a row brought no token, ended no request and computed nothing new: "
        "scheduler 'fake' 1.0 keeps scheduling them, although 1 requests wait"
    )


class FirstTokenForEver(Whole):
    """Takes a request in, and computes its first token in each step."""

    def __init__(self, context: SchedulerContext[NoOptions]) -> None:
        super().__init__(context, self._again)
        self._new: tuple[NewRequest, ...] = ()

    def _again(self) -> SchedulerOutput:
        self._new = self._new or self._inner.schedule().new
        return SchedulerOutput(step=0, new=self._new, num_scheduled_tokens={"a": 1})


def test_a_scheduler_that_computes_the_same_tokens_for_ever() -> None:
    engine = FakeEngine(scheduler=FirstTokenForEver)
    nothing = ModelRunnerOutput(request_ids=("a",), sampled_token_ids=((),))
    engine.executor._step = lambda call: nothing  # type: ignore[method-assign]  # a runner to whom it is all the same
    engine.add("a")
    error, count = run_to_death(engine)
    assert type(error) is PolicyFailed
    assert count == MAX_WASTED_STEPS + 128  # the longest request: so long may one take to be computed again


def test_few_wasted_steps_count_once_they_take_too_long() -> None:
    clock = FakeClock()
    engine = FakeEngine(runtime=fake_runtime(clock), step_timeout=60.0)
    silent(engine)
    engine.add("a")
    for _ in range(10):
        clock.time += 20
        engine.core.step()
    clock.time += 20
    with pytest.raises(EngineDead, match=r"runner 'fake' 1\.0 drew no token in 10 of them"):
        engine.core.step()


def test_a_long_request_may_be_computed_again_token_by_token() -> None:
    """Work that is done again is no progress; as long as it can be the way to a token, nobody is blamed for it."""
    length = 2 * MAX_WASTED_STEPS
    engine = FakeEngine(max_num_batched_tokens=1, max_num_seqs=1, max_model_len=length + 8, num_blocks=length)
    engine.add("a", "x" * (length - 2), max_tokens=4)
    while not engine.tokens.get("a"):
        engine.step()
    engine.executor.reply_generation = -1
    engine.step()  # it is void, and everything is computed again
    engine.executor.reply_generation = None
    engine.run()
    assert engine.tokens["a"] == [*b"the "]
    assert engine.core.stats().steps > 2 * length


class EveryThird(Arrival):
    """Holds each request back for two looks."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.looks = 0

    def admit(self, request: RequestView, state: PolicyState) -> bool:
        self.looks += 1
        return self.looks % 3 == 0


def test_idle_time_is_not_time_without_progress() -> None:
    clock = FakeClock()
    engine = FakeEngine(policy=EveryThird, runtime=fake_runtime(clock), step_timeout=60.0)
    for request_id in ("a", "b", "c"):
        engine.add(request_id, max_tokens=2)
        engine.run(20)
        assert engine.tokens[request_id] == [*b"th"]
        clock.time += 3600
