"""What goes wrong in the middle of an exchange: the old parts go on, or a loss of workers comes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.parts import CoreParts
from enginebay.engine.watch import WorkerWatch
from enginebay.errors import (
    CapabilityError,
    EnginebayError,
    EngineBusy,
    EngineDead,
    InvalidRequest,
    StartFailed,
    WorkerFailed,
)
from enginebay.interfaces import NoOptions, Scheduler
from enginebay.messages import EngineRequest, FinishReason, RestartWorkers, Swap
from support.fake_engine import FEATURES, FakeEngine, FakeRunner
from support.mortal import DEPTHS, EXPECTED, Mortal, answered, deadly
from support.swaps import Driven

Begun = Callable[[Any], None]


class Stub:
    """``CoreParts.rebuild`` as a test says. ``told`` is what was asked of it."""

    def __init__(self, *, workers: bool = False, room: str = "", **others: Any) -> None:
        self.others, self.workers, self.room = others, workers, room
        self.told: list[str] = []
        self.meanwhile: Callable[[Begun], None] = lambda begun: None
        capabilities = SimpleNamespace(features=FEATURES)
        plugin = SimpleNamespace(capabilities=capabilities)
        self.plan = SimpleNamespace(runner=SimpleNamespace(name_and_version="runner 'new' 1.0", plugin=plugin))

    def wanted(self, command: Swap) -> Any:
        return self.plan

    def is_in_force(self, plan: Any) -> bool:
        return False

    def needs_workers(self, plan: Any) -> bool:
        return self.workers

    def no_room(self, plan: Any) -> str:
        return self.room

    def with_scheduler(self, plan: Any, before: CoreParts) -> CoreParts:
        return replace(before, **self.others)

    def with_workers(self, plan: Any, before: CoreParts, generation: int, begun: Begun) -> CoreParts:
        self.told.append(f"start {generation}")
        self.meanwhile(begun)
        newcomer: Any = Newcomer(self.told)
        return replace(before, rebuild=newcomer, **self.others)

    def retire(self) -> None:
        self.told.append("retire old")

    def leave(self) -> None:
        self.told.append("leave old")


class Newcomer:
    """That of parts which were started, and may be dropped."""

    def __init__(self, told: list[str]) -> None:
        self.told = told

    def retire(self) -> None:
        self.told.append("retire new")

    def leave(self) -> None:
        self.told.append("leave new")


def refuses(request: EngineRequest) -> None:
    if request.request_id == "b":
        raise InvalidRequest("it is too much for this policy")


def breaks(request: EngineRequest) -> None:
    raise ValueError("out of order")


def made_with(engine: FakeEngine, look: Callable[[EngineRequest], None]) -> Callable[[], Scheduler[NoOptions]]:
    """A factory of schedulers that ``look`` at each request first, each over a cache of its own."""
    make = engine.core.parts.make_scheduler

    def factory() -> Scheduler[NoOptions]:
        before = engine.kv
        made: Any = make()
        add = made.add_request

        def looked(request: EngineRequest) -> None:
            look(request)
            add(request)

        made.add_request = looked
        engine.core.parts.cache.put(engine.kv)
        engine.kv = before
        scheduler: Scheduler[NoOptions] = made
        return scheduler

    return factory


def test_a_scheduler_that_refuses_or_breaks_leaves_the_old_one() -> None:  # R9
    for look, text in (
        (refuses, "scheduler 'new' 1.0 does not take request 'b', which runs: it is too much for this policy"),
        (breaks, "scheduler 'new' 1.0: add_request() raised ValueError: out of order"),
    ):
        stub = Stub(scheduler_name="scheduler 'new' 1.0")
        engine = Mortal(2, rebuild=stub)
        stub.others["make_scheduler"] = made_with(engine, look)
        engine.core.parts.cache.put(engine.kv)
        for _ in range(4):
            engine.step()
        cache = engine.core.parts.cache._manager
        with pytest.raises(CapabilityError) as caught:
            engine.core.control(Swap(scheduler="new"))
        assert str(caught.value) == f"{text}; what was in force before goes on"
        assert engine.core.parts.cache._manager is cache
        assert engine.core.parts.scheduler_name == "scheduler 'fake' 1.0"
        assert engine.core.death() is None
        engine.run()
        engine.check_ends()
        assert engine.generation.current == 0


@pytest.mark.parametrize("depth", [d for d in DEPTHS if d > 1])
@pytest.mark.parametrize("command", [Swap(scheduler="new"), RestartWorkers()])
def test_a_loss_in_the_steps_that_are_waited_for_comes_first(depth: int, command: Any) -> None:  # R9
    engine = Mortal(depth, rebuild=Stub(scheduler_name="scheduler 'new' 1.0"))
    deadly(engine, answered, {depth - 1})
    engine.step()
    with pytest.raises(EngineBusy) as caught:
        engine.core.control(command)
    name = "swap" if isinstance(command, Swap) else "restart"
    assert str(caught.value) == (
        f"{name} was given up, because workers were lost meanwhile (rank 0: it ended before it answered): ask again"
    )
    assert engine.core.parts.scheduler_name == "scheduler 'fake' 1.0"
    assert (engine.incarnations, engine.generation.current) == (2, 1)
    with pytest.raises(
        EngineBusy, match="has to wait: workers were lost, and it is being found out of what; ask again"
    ):
        engine.core.control(command)
    engine.run()
    engine.check_ends()


def test_a_loss_that_was_told_before_is_mended_first() -> None:
    engine = Mortal(rebuild=Stub(scheduler_name="scheduler 'new' 1.0"))
    engine.report()
    engine.core.control(Swap(scheduler="new"))
    assert engine.core.parts.scheduler_name == "scheduler 'new' 1.0"
    assert (engine.incarnations, engine.generation.current) == (2, 2)
    engine.run()
    engine.check_ends()


def test_the_old_workers_are_lost_while_new_ones_start() -> None:  # R9
    stub = Stub(workers=True)
    engine = Mortal(rebuild=stub)
    engine.step()
    stub.meanwhile = lambda begun: engine.report()
    with pytest.raises(EngineBusy, match=r"^swap was given up, because workers were lost meanwhile \(.*\): ask again$"):
        engine.core.control(Swap(runner="new"))
    assert stub.told == ["start 1", "retire new", "leave new"]
    engine.run()
    engine.check_ends()
    assert engine.incarnations == 2


@pytest.mark.parametrize("room", ["", "there is none"])
def test_clients_are_served_while_new_workers_start(room: str) -> None:
    stub = Stub(workers=True, room=room)
    engine = Mortal(rebuild=stub)
    engine.step()

    def serve(until: float) -> None:
        if "late" not in engine.tokens:
            engine.tokens["late"] = []
            engine.add("late", "say:here", max_tokens=9)
            engine.core.abort(["b"])

    def starts(begun: Begun) -> None:
        ground = SimpleNamespace(roster=None, executor=None, watch=WorkerWatch())
        begun(ground)
        engine.core._rebirth.meanwhile.serve = serve
        ground.watch.meanwhile()
        engine.clock.time += 1e6  # there is no bound to it, as there is to a recovery
        ground.watch.meanwhile()

    stub.meanwhile = starts
    engine.core.control(Swap(runner="new"))
    assert stub.told == (["retire old"] if room else []) + ["start 1"] + ([] if room else ["retire old"]) + [
        "leave old"
    ]
    engine.run()
    assert bytes(engine.tokens["late"][:4]) == b"here"
    assert engine.last["b"].finish_reason is FinishReason.ABORT
    assert [engine.tokens[one] for one in "ac"] == [EXPECTED[one] for one in "ac"]


def test_a_request_that_comes_meanwhile_and_would_not_be_served_is_a_reason_to_go_back() -> None:
    stub = Stub(workers=True)
    engine = Mortal(rebuild=stub, features=FEATURES)
    engine.step()
    limits = engine.core.limits
    stub.others["limits"] = replace(limits, features=FEATURES - {"logprobs"})
    stub.meanwhile = lambda begun: engine.add("late", "say:here", logprobs=1)
    with pytest.raises(
        CapabilityError, match=r"^request 'late', which runs, could not go on: .* does not serve logprobs"
    ):
        engine.core.control(Swap(runner="new"))
    assert stub.told == ["start 1", "retire new", "leave new"]
    assert engine.core.limits is limits
    engine.run()
    assert engine.last["late"].error is None


@given(
    calls=st.sets(st.integers(0, 60), max_size=6),
    changes=st.sets(st.integers(1, 40), max_size=8),
    depth=st.sampled_from(DEPTHS),
)
def test_any_losses_and_any_exchanges(calls: set[int], changes: set[int], depth: int) -> None:  # R9
    engine = Mortal(depth, rebuild=Stub(scheduler_name="scheduler 'new' 1.0"))
    deadly(engine, answered, calls)
    refused = step = 0
    while engine.core.has_work():
        engine.step()
        step += 1
        if step in changes and engine.core.num_unfinished:
            try:
                engine.core.control(RestartWorkers() if step % 3 == 0 else Swap(scheduler="new"))
            except EngineBusy:
                refused += 1
    engine.check_ends([one for one, last in engine.last.items() if last.error is not None])
    assert refused == 0 or calls


def test_workers_that_do_not_start_where_the_old_ones_had_to_go() -> None:  # R9
    stub = Stub(workers=True, room="there is none")
    engine = Mortal(rebuild=stub)
    engine.step()

    def fails(begun: Begun) -> None:
        raise WorkerFailed("rank 0 failed in load_model: no", remote_traceback="")

    stub.meanwhile = fails
    with pytest.raises(WorkerFailed) as caught:
        engine.core.control(Swap(runner="new"))
    assert str(caught.value) == "rank 0 failed in load_model: no; what was in force before goes on"
    assert stub.told == ["retire old", "start 1"]
    assert (engine.incarnations, engine.generation.current) == (2, 2)
    engine.run()
    engine.check_ends()


def test_an_executor_that_breaks_at_its_end_takes_no_exchange_back(caplog: pytest.LogCaptureFixture) -> None:  # R9
    stub = Stub(workers=True)
    engine = Mortal(rebuild=stub)
    engine.step()

    def breaks() -> None:
        raise ValueError("boom")

    stub.retire = breaks  # type: ignore[method-assign]  # the old executor, which errs
    engine.core.control(Swap(runner="new"))
    assert "swap: stopping the workers of before failed: ValueError: boom" in caplog.messages
    assert stub.told == ["start 1", "leave old"]
    engine.run()
    engine.check_ends()


def test_whatever_a_start_raises_the_old_parts_go_on_and_it_is_said() -> None:  # R9
    stub = Stub(workers=True)
    engine = Mortal(rebuild=stub)
    engine.step()

    def breaks(begun: Begun) -> None:
        raise ValueError("boom")

    stub.meanwhile = breaks
    with pytest.raises(StartFailed) as caught:
        engine.core.control(Swap(runner="new"))
    assert str(caught.value) == "ValueError: boom; what was in force before goes on"
    engine.run()
    engine.check_ends()


def test_an_engine_that_ends_meanwhile_starts_nothing_more() -> None:
    stub = Stub(workers=True, room="there is none")
    engine = Mortal(rebuild=stub)
    engine.step()
    stopped: list[str] = []
    roster: Any = SimpleNamespace(stop=lambda executor, deadline: stopped.append(executor))

    def ends(begun: Begun) -> None:
        ground = SimpleNamespace(roster=roster, executor="new", watch=WorkerWatch())
        begun(ground)
        engine.core.cut()
        assert stopped == ["new"], "they are stopped under their start"
        begun(ground)

    stub.meanwhile = ends
    with pytest.raises(EngineDead, match=r"^the engine is closed; make a new one"):
        engine.core.control(Swap(runner="new"))
    assert engine.incarnations == 1
    assert isinstance(engine.core.death(), EngineDead)


@pytest.mark.parametrize("command", [Swap(scheduler="new"), RestartWorkers()])
def test_what_cannot_be_exchanged_is_said_by_name(command: Any) -> None:
    engine = FakeEngine()
    with pytest.raises(CapabilityError) as caught:
        engine.core.control(command)
    assert str(caught.value) == "executor 'fake' 1.0 does not start workers again: start the engine anew"
    engine = FakeEngine(agreement=SimpleNamespace())
    with pytest.raises(CapabilityError) as caught:
        engine.core.control(command)
    assert str(caught.value) == (
        "executor 'fake' 1.0 has an engine in every rank, and all of them would have to change at the same step: start "
        "them anew with the other config"
    )


def test_neither_new_nor_old_workers_start(make: Callable[..., Driven], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make("recovery.longest_wait=0.001")
    engine.add("a")
    engine.step()

    def fails(self: FakeRunner) -> None:
        raise ValueError("no file")

    monkeypatch.setattr(FakeRunner, "load_model", fails)
    with pytest.raises(EnginebayError):
        engine.do(Swap(runner="fake", sets=("runner.options.announce=1",), exclusive=True))
    death = engine.core.death()
    assert death is not None
    assert str(death).startswith("the engine stopped: ")
    assert "ValueError: no file" in str(death)
    assert engine.last == {}, "the loop tells each request"
    assert engine.core.take_outputs() == []


def test_weights_that_nobody_has_kept_are_not_given_up(make: Callable[..., Driven]) -> None:
    engine = make()
    engine.core.life.have_weights(path="", version="mine", given=True)
    with pytest.raises(CapabilityError) as caught:
        engine.do(RestartWorkers())
    assert str(caught.value) == (
        "the weights in force (version 'mine') were given as tensors, and new workers could not have them: update the "
        "weights from a folder first"
    )
    with pytest.raises(CapabilityError, match="were given as tensors, and new workers could not"):
        engine.do(Swap(runner="fake", sets=("runner.options.announce=1",)))
    engine.do(Swap(scheduler="priority"))
    assert engine.core.in_force["scheduler"] == "priority"


def test_other_workers_are_looked_at_and_their_pace_is_their_own() -> None:
    stub = Stub(workers=True)
    engine = Mortal(rebuild=stub)
    engine.step()
    execution = engine.core._execution
    lookout, pace = execution._lookout, execution._pace
    engine.core.control(RestartWorkers())
    assert (execution._lookout, execution._pace) == (lookout, pace), "they are of the same kind"
    watch = WorkerWatch()
    stub.others |= {"watch": watch}
    engine.core.control(Swap(runner="new"))
    assert execution._lookout is not lookout
    assert execution._pace is not pace
    assert engine.core.parts.watch is watch
    engine.run()
    engine.check_ends()


def test_a_deadline_that_passes_while_others_start_in_vain_ends_its_request_alone() -> None:  # R9
    """The scheduler that goes on hears of it: else it would schedule what has ended."""
    stub = Stub(workers=True)
    engine = Mortal(rebuild=stub)
    engine.add("late", "say:here and there", ask={"timeout": 5.0}, max_tokens=9)
    engine.add("other", "say:there and here", max_tokens=9)
    for _ in range(4):
        engine.step()

    def starts(begun: Begun) -> None:
        ground: Any = SimpleNamespace(roster=None, executor=None, watch=WorkerWatch())
        begun(ground)
        engine.core._rebirth.meanwhile.serve = lambda until: None
        engine.clock.time += 10
        ground.watch.meanwhile()
        raise WorkerFailed("rank 0 failed in load_model: no", remote_traceback="")

    stub.meanwhile = starts
    with pytest.raises(WorkerFailed, match="what was in force before goes on"):
        engine.core.control(Swap(runner="new"))
    engine.run()
    assert engine.core.death() is None
    assert {name for name, last in engine.last.items() if last.error is not None} == {"late"}
