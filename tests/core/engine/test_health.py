"""Health by what comes of an engine: workers that are ready, and steps that end; answered also by a hung one."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest
from msgspec import structs

from enginebay import LLM, AsyncLLM
from enginebay.errors import EngineDead
from enginebay.interfaces import ExecutorHealth, RankHealth
from enginebay.messages import ControlDone, EngineHealth, Envelope, Phase, Replies, SinkState, Slot
from support.fake_engine import FakeRunner
from support.fake_engines import Installed
from support.mortal import Mortal, deadly


def health(engine: Mortal) -> EngineHealth:
    said = engine.core.status().health
    assert said is not None
    return said


def _silent(engine: Mortal, envelope: Envelope) -> Future[Replies]:
    return Future()


def test_a_group_whose_worker_is_ready_and_which_has_nothing_to_do_is_well() -> None:
    engine = Mortal()
    engine.run()
    engine.clock.time += 3600.0
    said = health(engine)
    assert (said.healthy, said.why, [one.phase for one in said.workers]) == (True, "", [Phase.READY])
    assert engine.core.status().facts["health"] == "healthy"


def test_a_group_is_well_only_with_a_worker_in_each_slot_and_all_of_one_generation() -> None:  # T12
    engine = Mortal()
    engine.run()
    roster = engine.core.parts.roster
    [stands] = roster.statuses()
    other = Slot(group=0, rank=1, device=roster.slots[0].device)
    roster.slots = (*roster.slots, other)
    assert health(engine).why == f"{other.name} has no worker"
    earlier, now = f"{stands.slot.name} is of an earlier generation", stands.incarnation.generation
    for generation, said in ((now, ""), (now + 1, earlier)):
        second = structs.replace(stands.incarnation, id=f"second {generation}", generation=generation)
        roster._book.set(structs.replace(stands, slot=other, incarnation=second))
        roster.incarnations = (stands.incarnation.id, second.id)
        assert (health(engine).healthy, health(engine).why) == (said == "", said)


@pytest.mark.parametrize("budget", [0.0, 600.0])
def test_a_step_that_does_not_end_is_seen_unless_it_has_asked_for_time(budget: float) -> None:
    engine = Mortal(heartbeat=5.0)
    engine.executor.health = lambda: ExecutorHealth(  # type: ignore[method-assign]  # what the worker said last
        alive=True, ranks=(RankHealth(rank=0, age=1.0, budget=budget),) if budget else ()
    )
    seen: list[tuple[bool, str]] = []

    submit = engine.executor.submit

    def slow(envelope: Envelope) -> Future[Replies]:
        if len(engine.seen) == 3 and not seen:
            for seconds in (14.0, 2.0):
                engine.clock.time += seconds
                said = health(engine)
                seen.append((said.healthy, said.why))
        return submit(envelope)

    engine.executor.submit = slow  # type: ignore[method-assign]  # to look at it while a step runs
    engine.run()
    assert seen == [(True, ""), (True, "") if budget else (False, "step 3 has not ended for 16 s")]


def test_a_worker_that_is_late_is_degraded_until_its_step_ends_and_well_for_some_time() -> None:
    engine = Mortal(heartbeat=5.0)
    submit, asked, seen = engine.executor.submit, Future[Replies](), list[tuple[float, bool, list[str]]]()
    begun = engine.clock.time

    def see() -> None:
        said = health(engine)
        phases = [f"{one.phase} {one.reason}".strip() for one in said.workers]
        seen.append((engine.clock.time - begun, said.healthy, phases))

    def look() -> ExecutorHealth:
        if engine.clock.time > begun + 5.0:
            see()
        if engine.clock.time > begun + 7.5:
            asked.set_result(submit(held[0]).result())
        return ExecutorHealth(alive=True, ranks=(RankHealth(rank=0, phase="execute_model", age=1.0),))

    held: list[Envelope] = []

    def slow(envelope: Envelope) -> Future[Replies]:
        if not held:
            held.append(envelope)
            return asked
        return submit(envelope)

    engine.executor.submit = slow  # type: ignore[method-assign]  # the first step takes long
    engine.executor.health = look  # type: ignore[method-assign]  # to look at it meanwhile
    engine.run()
    see()
    degraded = ["Degraded Slow"]
    assert seen == [(6.0, True, ["Ready"]), (7.0, True, degraded), (8.0, True, degraded), (8.0, True, ["Ready"])]
    assert engine.core.status().facts["generation"] == "0"
    engine.check_ends()


def test_workers_that_are_being_started_are_said() -> None:
    engine = Mortal()
    said: list[str] = []
    engine.in_respawn = lambda: said.append(health(engine).why)
    deadly(engine, _silent, {3})
    engine.run()
    assert said == ["group-0/rank-0/cpu:0 is Starting"]
    assert health(engine).workers[0].restarts == 1


def test_a_dead_engine_says_what_of() -> None:
    engine = Mortal(respawn=None)
    deadly(engine, _silent, {2})
    with pytest.raises(Exception, match="no answer to execute_model"):
        engine.run()
    said = health(engine)
    assert not said.healthy
    assert said.why.startswith("the engine stopped: no answer to execute_model of step 2 within ")


def test_programs_ask_an_engine_that_hangs(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    hang, goes = threading.Event(), threading.Event()
    execute = FakeRunner.execute_model

    def hanging(self: FakeRunner, output: Any) -> Any:
        goes.set()
        hang.wait(60)
        return execute(self, output)

    with LLM(fake.config(), sets=["deadlines.heartbeat=0.05"]) as llm:
        assert llm.health().healthy
        monkeypatch.setattr(FakeRunner, "execute_model", hanging)
        asking = threading.Thread(target=lambda: llm.generate("say:hello"))
        asking.start()
        assert goes.wait(60)
        while llm.health().healthy:
            time.sleep(0.01)
        assert llm.health().why.startswith("step ")
        hang.set()
        asking.join(60)
        while not llm.health().healthy:
            time.sleep(0.01)
    with pytest.raises(EngineDead):
        llm.health()


def test_it_is_awaited_too(fake: Installed) -> None:
    async def asked() -> EngineHealth:
        async with AsyncLLM(fake.config()) as llm:
            return await llm.health()

    assert asyncio.run(asked()).workers[0].slot.name == "group-0/rank-0/cpu:0"


def test_groups_are_well_together(fake: Installed) -> None:
    with LLM(fake.config(), sets=["parallel.data_parallel_size=2"]) as llm:
        said = llm.health()
        assert said.healthy
        assert [one.slot.group for one in said.workers] == [0, 1]
        llm.drain()
        said = llm.health()
        assert (said.healthy, said.why) == (
            False,
            "the engine drains, and takes no new requests: ask again when it has resumed",
        )
        assert [one.phase for one in said.workers] == [Phase.DRAINING] * 2
        llm.resume()
        assert llm.health().healthy


def test_sinks_that_are_down_make_no_engine_unwell(fake: Installed) -> None:
    sets = ['status.sinks=["http"]', "status.http.url=http://127.0.0.1:9/engine", "status.http.timeout=0.2"]
    with LLM(fake.config(), sets=sets) as llm:
        while not llm.health().sinks[0].failures:
            time.sleep(0.01)
        said = llm.health()
        assert said.healthy
        assert (said.sinks[0].name, said.sinks[0].behind) == ("http", 1)


def test_an_engine_that_does_not_say_is_not_taken_for_well() -> None:
    from enginebay.engine.control.words import health_of

    assert not health_of(ControlDone()).healthy
    assert health_of(ControlDone(health=EngineHealth(healthy=True, sinks=(SinkState(name="a"),)))).healthy
