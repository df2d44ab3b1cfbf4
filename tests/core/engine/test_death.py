"""One guard for every door to a stranger's code: the first failure is the one root cause, with its class and name."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import enginebay.engine.loop as loop_module
from enginebay.engine.admission.admit import Ask
from enginebay.engine.death import Death
from enginebay.engine.loop import Abort, Add, EngineLoop, ReadStats
from enginebay.engine.watch import WorkerWatch
from enginebay.errors import EnginebayError, EngineDead, PolicyFailed, WorkerLost
from enginebay.interfaces import NoOptions, RequestView, Scheduler, SchedulerContext, WorkerExit
from enginebay.messages import (
    FinishReason,
    RequestOutput,
    RunningRequest,
    SamplingParams,
    SchedulerOutput,
    StructuredOutput,
)
from enginebay.runtime import system_runtime
from enginebay.scheduling import MechanicsScheduler
from support.fake_engine import Arrival, Bytes, FakeEngine, answer_of
from support.whole_scheduler import OverMechanics

METHODS = [
    "add_request",
    "finish_requests",
    "schedule",
    "update_from_output",
    "has_requests",
    "make_stats",
    "get_grammar_bitmask",
    "on_step",
]


class Fragile:
    """A good scheduler whose method ``fails`` raises, once it is set."""

    def __init__(self, context: SchedulerContext[NoOptions]) -> None:
        self._inner: Scheduler[NoOptions] = MechanicsScheduler(Arrival(context), context)
        self.fails = ""

    def __getattr__(self, name: str) -> Any:
        if name == self.fails:
            raise KeyError("mine")
        return getattr(self._inner, name)


def fragile(method: str = "") -> tuple[FakeEngine, Fragile]:
    """An engine over a scheduler whose ``method`` will fail; masks are asked for only where there is a grammar."""
    made: list[Fragile] = []

    def make(context: SchedulerContext[NoOptions]) -> Any:
        made.append(Fragile(context))
        return made[-1]

    engine = FakeEngine(scheduler=make, constrained=method == "get_grammar_bitmask")
    return engine, made[0]


ENTRIES: list[tuple[str, Callable[[FakeEngine], object]]] = [
    ("add_request", lambda engine: engine.add("b")),
    ("finish_requests", lambda engine: engine.core.abort(["a"])),
    ("has_requests", lambda engine: (engine.core.abort(["a"]), engine.core.step(), engine.core.has_work())),
    ("make_stats", lambda engine: engine.core.stats()),
    ("schedule", lambda engine: engine.core.step()),
    ("update_from_output", lambda engine: engine.core.step()),
    ("get_grammar_bitmask", lambda engine: engine.core.step()),
    ("make_stats", lambda engine: engine.core.step()),
    ("on_step", lambda engine: engine.core.step()),
]


@pytest.mark.parametrize(("method", "entry"), ENTRIES)
def test_whatever_a_scheduler_raises_is_the_death_with_its_name(
    method: str, entry: Callable[[FakeEngine], object]
) -> None:
    engine, scheduler = fragile(method)
    engine.add("a", max_tokens=50)
    engine.step()
    scheduler.fails = method
    with pytest.raises(PolicyFailed) as caught:
        entry(engine)
    message = f"scheduler 'fake' 1.0: {method}() raised KeyError: 'mine'"
    assert str(caught.value) == message
    assert engine.executor.stopped == 1
    assert [type(engine.core.death()), str(engine.core.death())] == [PolicyFailed, message]
    later: list[Callable[[], object]] = [lambda: engine.add("c"), engine.core.step]
    for call in later:
        with pytest.raises(PolicyFailed) as again:
            call()
        assert str(again.value) == message
    engine.core.abort(["a"])  # nobody is left to be ended
    assert not engine.core.has_work()
    assert engine.core.stats().unfinished == 0


def test_every_method_of_a_scheduler_is_tried() -> None:
    assert {method for method, _ in ENTRIES} == set(METHODS)
    abstract = set(Scheduler.__abstractmethods__) | {"get_grammar_bitmask", "on_step"}
    assert abstract - set(METHODS) == {"preempt_all"}  # which the core does not call


class RaisesAtEnds(Arrival):
    def on_finished(self, request: RequestView, reason: FinishReason) -> None:
        raise KeyError("mine")


def test_a_policy_that_raises_when_a_request_is_aborted() -> None:
    engine = FakeEngine(policy=RaisesAtEnds)
    engine.add("a")
    with pytest.raises(PolicyFailed, match=r"RaisesAtEnds: on_finished\(\) raised KeyError: 'mine'"):
        engine.core.abort(["a"])
    engine = FakeEngine(policy=RaisesAtEnds)
    engine.add("a")
    with pytest.raises(PolicyFailed, match=r"on_finished\(\) raised KeyError: 'mine'"):
        engine.core.step(lambda: engine.core.abort(["a"]))


class Sink:
    def __init__(self) -> None:
        self.errors: list[EnginebayError] = []

    def put(self, output: RequestOutput) -> None:
        """Not looked at."""

    def fail(self, error: EnginebayError) -> None:
        self.errors.append(error)


@pytest.mark.parametrize("method", METHODS)
def test_clients_of_the_loop_are_told_with_the_class(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "_IDLE_SECONDS", 0.01)  # a loop that has nothing to do is turned here by hand
    engine, scheduler = fragile(method)
    loop, sink = EngineLoop(engine.core), Sink()
    structured = StructuredOutput(choice=(answer_of((1, 2, 3)),)) if engine.constrained else None
    ask = Ask(request_id="a", prompt_token_ids=(1, 2, 3), params=SamplingParams(structured=structured))
    if method == "add_request":
        scheduler.fails = method
    loop.send(Add(ask=ask, sink=sink, operation="text_completion"))
    loop.turn()
    scheduler.fails = method
    loop.send(ReadStats())
    loop.turn()
    loop.send(Abort(request_id="a", sink=sink))
    for _ in range(3):
        if not sink.errors and engine.core.death() is None:
            loop.turn()
    assert isinstance(engine.core.death(), PolicyFailed)
    # has_requests is first asked when the request has ended already
    assert [type(error) for error in sink.errors] == ([] if method == "has_requests" else [PolicyFailed])


def never() -> Future[Any]:
    return Future()


SIGNALLED = WorkerExit(rank=3, incarnation="x", signal=9, last_log_lines=("one", "two"))


def test_a_reported_death_ends_the_step_at_once() -> None:  # X4
    watch = WorkerWatch()
    engine = FakeEngine(runtime=system_runtime(seed=1), watch=watch, step_timeout=60.0)
    engine.executor.submit = lambda envelope: never()  # type: ignore[method-assign]  # a worker that never answers
    engine.add("a")
    timer = threading.Timer(0.05, watch.exited, [SIGNALLED])
    timer.start()
    begun = time.monotonic()
    with pytest.raises(WorkerLost) as caught:
        engine.step()
    timer.join()
    assert time.monotonic() - begun < 10
    assert str(caught.value) == "the engine stopped: rank 3: the worker ended (signal 9); last log lines: one | two"
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("worker_exit", "message"),
    [
        (WorkerExit(rank=0, incarnation="x", exit_code=3), "rank 0: the worker ended (exit code 3)"),
        (WorkerExit(rank=1, incarnation="x", exit_code=0), "rank 1: the worker ended (exit code 0)"),
        (WorkerExit(rank=2, incarnation="x"), "rank 2: the worker ended"),
    ],
)
def test_a_death_that_was_reported_between_two_steps(worker_exit: WorkerExit, message: str) -> None:
    watch = WorkerWatch()
    engine = FakeEngine(watch=watch)
    engine.add("a")
    engine.step()
    watch.exited(worker_exit)
    watch.exited(SIGNALLED)  # the first one is the cause
    with pytest.raises(WorkerLost) as caught:
        engine.step()
    assert str(caught.value) == f"the engine stopped: {message}"


def test_an_answer_that_came_counts_for_more_than_a_death_after_it() -> None:
    watch = WorkerWatch()
    engine = FakeEngine(watch=watch)
    engine.add("a", max_tokens=1)
    submit = engine.executor.submit

    def last(envelope: Any) -> Future[Any]:
        future = submit(envelope)
        watch.exited(SIGNALLED)
        return future

    engine.executor.submit = last  # type: ignore[method-assign]  # a worker that dies after its answer
    outputs = engine.step()
    assert [(o.finish_reason, o.token_ids) for o in outputs] == [(FinishReason.LENGTH, (116,))]


def test_the_log_has_the_circumstances_of_a_death_in_numbers(caplog: pytest.LogCaptureFixture) -> None:
    in_force = {"runner": "fake", "kv_blocks": "64"}
    engine = FakeEngine(in_force=in_force, max_num_batched_tokens=6, max_failed_steps=1)
    engine.add("secret-free", "TOPSECRET say:WORDS", max_tokens=4)
    engine.add("other", "x", max_tokens=4)
    for _ in range(3):
        engine.step()
    engine.executor.before = lambda output: exec("raise ValueError('boom')")
    with caplog.at_level(logging.INFO, logger="enginebay"), pytest.raises(EngineDead):
        engine.step()
    (record,) = [record for record in caplog.records if record.name == "enginebay.engine.error_detail"]
    assert record.exc_info is not None
    assert "boom" in str(record.exc_info[1])
    head, _, text = record.getMessage().partition(": ")
    assert head == "the engine dies of this; its state"
    detail = json.loads(text)
    assert detail["in_force"] == in_force
    assert detail["scheduler"]["num_blocks"] == 64
    assert detail["scheduler"]["num_running"] == 1
    (step,) = detail["steps"]
    assert (step["step"], step["generation"], step["finished"], step["preempted"]) == (3, 0, 0, 0)
    assert step["running"] == [
        {"request_id": "secret-free", "num_computed_tokens": 18, "num_scheduled_tokens": 1, "num_new_blocks": 0}
    ]
    assert step["new"] == [
        {
            "request_id": "other",
            "num_computed_tokens": 0,
            "num_scheduled_tokens": 1,
            "num_prompt_tokens": 1,
            "num_tokens": 1,
            "num_blocks": 1,
        }
    ]
    assert "TOPSECRET" not in caplog.text
    assert "token_ids" not in caplog.text
    assert str(ord("T")) + ", " not in text


class Odd(OverMechanics):
    """Says things of a type that nobody can write down."""

    change: Callable[[RunningRequest], RunningRequest]

    def schedule(self) -> SchedulerOutput:
        scheduled = super().schedule()
        return replace(scheduled, running=tuple(map(self.change, scheduled.running)))


class OddBlocks(Odd):
    change = staticmethod(lambda one: replace(one, new_block_ids=None))


class OddCounts(Odd):
    change = staticmethod(lambda one: replace(one, num_computed_tokens=np.int64(one.num_computed_tokens)))


@pytest.mark.parametrize("scheduler", [OddBlocks, OddCounts])
def test_whatever_cannot_be_told_of_a_death_the_workers_are_stopped(
    scheduler: type[OverMechanics], caplog: pytest.LogCaptureFixture
) -> None:  # E2, X13
    engine = FakeEngine(scheduler=scheduler, max_failed_steps=1)
    engine.add("a", max_tokens=8)
    engine.executor.before = lambda output: exec("if output.step == 1: raise ValueError('boom')", {"output": output})
    with caplog.at_level(logging.INFO, logger="enginebay"), pytest.raises(EnginebayError) as caught:
        engine.run(4)
    death = engine.core.death()
    assert death is not None
    assert str(caught.value) == str(death)
    assert engine.executor.stopped
    assert engine.core.num_unfinished == 0
    assert any("it cannot be told: " in record.getMessage() for record in caplog.records)


def test_workers_whose_stop_was_interrupted_are_stopped_by_the_engine_s() -> None:
    engine = FakeEngine(max_failed_steps=1)
    engine.add("a", max_tokens=8)
    stop, calls = engine.executor.stop, [0]

    def interrupted(deadline: float) -> None:
        calls[0] += 1
        if calls[0] == 1:
            raise KeyboardInterrupt
        stop(deadline)

    engine.executor.stop = interrupted  # type: ignore[method-assign]  # somebody presses Ctrl-C in it
    engine.executor.before = lambda output: exec("raise ValueError('boom')")
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.core.stop()
    assert engine.executor.stopped
    assert calls == [2]


class Panic(BaseException):
    """What native code throws past Exception."""


class Panics(Bytes):
    def finish(self) -> str:
        raise Panic("called unwrap on nothing")


@pytest.mark.parametrize("dies", [False, True])
def test_a_row_that_cannot_be_ended_keeps_no_worker_alive(dies: bool) -> None:
    class Failing(Arrival):
        def on_output(self, request: RequestView, token_ids: tuple[int, ...]) -> None:
            if dies:
                raise ValueError("asked to die")

    released: list[int] = []
    engine = FakeEngine(policy=Failing, detokenizer=Panics, release=lambda: released.append(1))
    engine.add("a", max_tokens=30)
    engine.add("b", max_tokens=30)
    if dies:
        with pytest.raises(PolicyFailed, match="asked to die"):
            engine.run()
    else:
        engine.step()
    engine.core.stop()
    assert engine.executor.stopped == 1
    assert released == [1]
    assert engine.hooks.stopped == 1
    death = engine.core.death()
    assert death is not None
    assert ("asked to die" if dies else "the engine is closed") in str(death)


@pytest.mark.parametrize("raised", [RuntimeError("the pool is broken"), SystemExit(3), OSError("no such folder")])
@pytest.mark.parametrize("part", ["release", "executor"])
def test_whatever_a_stop_meets_it_goes_on(part: str, raised: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def fails(*_: object) -> None:
        done.append(part)
        raise raised

    engine = FakeEngine(release=fails if part == "release" else lambda: done.append("release"))
    if part == "executor":
        monkeypatch.setattr(engine.executor, "stop", fails)
    engine.add("a")
    engine.core.cut()
    engine.core.stop()
    engine.core.stop()
    assert done == ["release"] if part == "release" else ["executor", "executor", "release"]
    assert engine.hooks.stopped == 1


class Mute(EnginebayError):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_an_error_of_ours_that_cannot_say_its_words_is_a_death_too() -> None:
    assert Death.of(Mute()).message == "the engine stopped: Mute: (its text cannot be had)"


WRONG: list[tuple[str, str, Any]] = [
    ("new", "block_ids", ((1.5,),)),
    ("new", "num_computed_tokens", 0.0),
    ("running", "new_block_ids", None),
    ("running", "num_computed_tokens", 1.0),
]


@pytest.mark.parametrize(("part", "field", "value"), WRONG, ids=[f"{part} {field}" for part, field, _ in WRONG])
def test_a_schedule_that_workers_cannot_read_is_the_scheduler_s(part: str, field: str, value: Any) -> None:
    """Found by whoever decodes it, a rank or the executor: the codec checks what a struct does not."""

    class Wrong(OverMechanics):
        def schedule(self) -> SchedulerOutput:
            out = super().schedule()
            return replace(out, **{part: tuple(replace(one, **{field: value}) for one in getattr(out, part))})

    engine = FakeEngine(scheduler=Wrong)
    engine.add("a", max_tokens=5)
    with pytest.raises(
        PolicyFailed, match=r"^scheduler 'fake' 1.0: step \d cannot be read by the workers: .*Expected"
    ) as dead:
        engine.run()
    assert f"{part}[0].{field}" in str(dead.value)


TOLD: list[tuple[str, Any, str]] = [
    ("token_ids", ("a",), "1 tokens that are not the 2 of its prompt and the 0 that it has got"),
    ("token_ids", (104, 106), "2 tokens that are not the 2 of its prompt and the 0 that it has got"),
    ("params", None, "other sampling parameters than it asked for"),
    ("params", SamplingParams(max_tokens=4), "other sampling parameters than it asked for"),
    ("seed", None, "the seed None, and it has 1100939144240465922"),
    ("num_prompt_tokens", 1, "a prompt of 1 tokens, and it has 2"),
]


@pytest.mark.parametrize(("field", "value", "words"), TOLD, ids=[f"{field}-{value}" for field, value, _ in TOLD])
def test_a_runner_is_told_of_a_request_what_the_client_asked(field: str, value: Any, words: str) -> None:
    class Wrong(OverMechanics):
        def schedule(self) -> SchedulerOutput:
            out = super().schedule()
            return replace(out, new=tuple(replace(one, **{field: value}) for one in out.new))

    engine = FakeEngine(scheduler=Wrong)
    engine.add("a", max_tokens=5)
    with pytest.raises(PolicyFailed) as dead:
        engine.run()
    assert str(dead.value) == f"scheduler 'fake' 1.0 scheduled request 'a' in step 0 with {words}"


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_prompt_is_never_told_shorter_or_longer_than_it_is(count: int) -> None:
    class Wrong(OverMechanics):
        def schedule(self) -> SchedulerOutput:
            out = super().schedule()
            return replace(out, new=tuple(replace(one, num_prompt_tokens=count) for one in out.new))

    engine = FakeEngine(scheduler=Wrong)
    engine.add("a", prompt=(1, 2, 3))
    with pytest.raises(PolicyFailed) as dead:
        engine.run()
    assert str(dead.value) == (
        f"scheduler 'fake' 1.0 scheduled request 'a' in step 0 with a prompt of {count} tokens, and it has 3"
    )
