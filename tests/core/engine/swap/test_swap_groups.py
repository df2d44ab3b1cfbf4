"""Several groups: each is exchanged after the one before, restarted while the others take the requests, and alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from enginebay import LLM, SamplingParams
from enginebay.engine.control.tensors import Command
from enginebay.engine.core import EngineCore
from enginebay.engine.lending import Lender
from enginebay.engine.replicas.growing import GrowingSet
from enginebay.engine.replicas.routing import Router
from enginebay.engine.replicas.unison import Unison
from enginebay.errors import CapabilityError, EnginebayError, EngineBusy, InvalidRequest
from enginebay.interfaces import RunnerCapabilities
from enginebay.messages import ControlDone, RestartWorkers, Scale, Sleep, Swap
from enginebay.runtime import system_runtime
from support.fake_engine import FakeEngine, FakeRunner
from support.fake_engines import Installed
from support.groups import Groups, Sink, ask, until

PROMPTS = [f"say:number {number} of many" for number in range(24)]
PARAMS = SamplingParams(max_tokens=40)


def test_groups_are_exchanged_and_restarted_one_after_the_other(
    fake: Installed, runners: list[FakeRunner]
) -> None:  # R9
    with LLM(fake.config(), sets=("parallel.data_parallel_size=2",)) as llm:
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.extend(llm.generate(PROMPTS, PARAMS)))
        asking.start()
        assert llm.swap(scheduler="priority") == {"scheduler": "priority", "generation": "1"}
        llm.restart_workers()
        assert llm.swap(runner="fake", sets=["runner.options.announce=1"]) == {"generation": "3"}
        asking.join(60)
        assert [one.text for one in found] == [prompt.removeprefix("say:") for prompt in PROMPTS]
        assert len(runners) == 6
        assert llm.in_force["scheduler"] == "priority"
        health = llm.health()
        assert health.healthy
        assert [(one.slot.group, one.restarts) for one in health.workers] == [(0, 0), (1, 0)]


def test_a_group_that_is_restarted_is_passed_over(make_groups: Callable[..., Groups]) -> None:  # R9
    groups = make_groups(2)
    starts, begun = threading.Event(), threading.Event()

    def respawn(pause: Callable[[], None]) -> None:
        begun.set()
        assert starts.wait(20)

    for one in groups.engines:
        vars(one.core.parts)["respawn"] = respawn  # a frozen class: a test alone may
    done = groups.set.control(RestartWorkers())
    assert begun.wait(20)
    sinks = [Sink() for _ in range(6)]
    for number, sink in enumerate(sinks):
        groups.set.add_request(ask(f"r{number}"), sink)
    until(lambda: all(sink.ended() for sink in sinks))
    assert [one.core.stats().finished for one in groups.engines] == [0, 6]
    starts.set()
    assert done.result(20).facts == {"restarted": "2"}
    again = [Sink() for _ in range(2)]
    for number, sink in enumerate(again):
        groups.set.add_request(ask(f"s{number}"), sink)
    until(lambda: all(sink.ended() for sink in again))
    assert groups.engines[0].core.stats().finished > 0


def test_a_group_that_is_restarted_is_offered_the_weights_of_another(make_groups: Callable[..., Groups]) -> None:
    groups = make_groups(2, runner_capabilities=RunnerCapabilities(send_weights=True))
    lenders: list[Lender | None] = []

    def respawn(pause: Callable[[], None], lender: Lender | None = None) -> None:
        lenders.append(lender)

    for one in groups.engines:
        vars(one.core.parts)["respawn"] = respawn
    groups.set.control(RestartWorkers()).result(20)
    executors = [None if one is None else one.executor for one in lenders]
    assert executors == [groups.engines[1].executor, groups.engines[0].executor]
    lenders.clear()
    groups.engines[0].core.life.missing = frozenset({"weights"})
    assert isinstance(groups.set.control(RestartWorkers()).exception(20), EngineBusy), "the first one sleeps"
    exchange = groups.engines[1].core._exchange
    exchange.restart(groups.engines[0].core.lender)
    assert lenders == [None], "one that sleeps lends nothing"


def test_one_that_rests_is_chosen_when_there_is_no_other() -> None:
    router = Router(2, prefix=0, slack=0)
    router.rest(0, True)
    assert [router.take(ask(f"r{number}"))[0] for number in range(3)] == [1, 1, 1]  # type: ignore[index]  # there are some
    router.lose(1)
    assert router.take(ask("alone")) == (0, 5)
    router.rest(0, False)
    router.add()
    assert router.take(ask("last")) == (2, 5)


WAITING: list[tuple[Command, str]] = [
    (Swap(scheduler="priority"), "swap has to wait: the engine is busy with restart_workers; ask again"),
    (Scale(tensor_parallel_size=2), "scale has to wait: the engine is busy with restart_workers; ask again"),
    (RestartWorkers(), "restart_workers has to wait: the engine is busy with restart_workers; ask again"),
    (Sleep(), "sleep has to wait: the engine is busy with restart_workers; ask again"),
]


@pytest.mark.parametrize(("command", "text"), WAITING)
def test_one_at_a_time(command: Command, text: str) -> None:  # R9
    unison, runtime = Unison(), system_runtime()
    answer: Future[ControlDone] = Future()
    unison.control(runtime, RestartWorkers(), [0], lambda index: answer)
    with pytest.raises(EngineBusy) as caught:
        unison.control(runtime, command, [0], lambda index: Future())
    assert str(caught.value) == text
    with pytest.raises(EngineBusy, match="no group is started while"), unison.growing():
        pass
    answer.set_result(ControlDone())
    assert not unison.control(runtime, command, [0], lambda index: Future()).done()


def test_nothing_is_exchanged_while_weights_change_or_a_group_starts() -> None:
    unison, runtime = Unison(), system_runtime()
    sleeping: Future[ControlDone] = Future()
    unison.control(runtime, Sleep(), [0], lambda index: sleeping)
    busy = "^swap has to wait: the engine is busy with something else; ask again$"
    with pytest.raises(EngineBusy, match=busy):
        unison.control(runtime, Swap(scheduler="x"), [0], lambda index: Future())
    sleeping.set_result(ControlDone())
    with unison.growing(), pytest.raises(EngineBusy, match=busy):
        unison.control(runtime, Swap(scheduler="x"), [0], lambda index: Future())


def test_a_command_that_cannot_be_sent_keeps_no_other_from_it() -> None:
    unison, runtime = Unison(), system_runtime()

    def refuses(index: int) -> Future[ControlDone]:
        raise CapabilityError("no")

    def breaks(index: int) -> Future[ControlDone]:
        raise RuntimeError("gone")

    assert isinstance(unison.control(runtime, RestartWorkers(), [0], refuses).exception(0), EnginebayError)
    with pytest.raises(RuntimeError):
        unison.control(runtime, RestartWorkers(), [0], breaks)
    assert not unison.control(runtime, RestartWorkers(), [0], lambda index: Future()).done()


def test_an_exchange_that_a_group_refuses_says_which_have_done_it(make_groups: Callable[..., Groups]) -> None:
    groups = make_groups(2)
    vars(groups.engines[0].core.parts)["respawn"] = lambda pause: None
    done = groups.set.control(RestartWorkers())
    assert str(done.exception(20)) == (
        "group 1 did not restart_workers, which group 0 did already: executor 'fake' 1.0 does not start workers again: "
        "start the engine anew"
    )
    assert groups.engines[0].core.parts.generation.current == 1


def test_a_set_grows_to_as_many_groups_as_are_asked_for() -> None:
    engines = [FakeEngine() for _ in range(3)]
    begun, goes_on = threading.Event(), threading.Event()

    def another(index: int, lender: EngineCore) -> EngineCore:
        assert lender is engines[0].core
        begun.set()
        assert goes_on.wait(20)
        return engines[index].core

    groups = GrowingSet([engines[0].core], another, stop_timeout=5.0)
    groups.start()
    try:
        done = groups.control(Scale(data_parallel_size=3))
        assert begun.wait(20)
        sink = Sink()
        groups.add_request(ask("a"), sink)
        until(sink.ended)
        with pytest.raises(EngineBusy, match=r"^swap has to wait"):
            groups.control(Swap(scheduler="priority"))
        goes_on.set()
        assert done.result(20).facts == {"groups": "3"}
        assert groups.loads == (0, 0, 0)
        assert groups.control(Scale(data_parallel_size=3)).result(20).facts == {}
        with pytest.raises(CapabilityError, match=r"^3 groups run, and none is taken away while the engine does"):
            groups.control(Scale(data_parallel_size=2))
        with pytest.raises(InvalidRequest, match=r"^data_parallel_size is changed alone"):
            groups.control(Scale(data_parallel_size=4, tensor_parallel_size=2))
    finally:
        groups.stop()


def test_a_set_that_cannot_grow_goes_on() -> None:
    def another(index: int, lender: EngineCore) -> EngineCore:
        raise CapabilityError("it lends nothing")

    engine = FakeEngine()
    groups = GrowingSet([engine.core], another, stop_timeout=5.0)
    groups.start()
    try:
        assert str(groups.control(Scale(data_parallel_size=2)).exception(20)) == "it lends nothing"
        sink = Sink()
        groups.add_request(ask("a"), sink)
        until(sink.ended)
    finally:
        groups.stop()
