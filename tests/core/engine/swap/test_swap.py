"""Plugins that are exchanged while requests run: nothing is lost, doubled or changed, or it is refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from enginebay.errors import CapabilityError, ConfigError, EnginebayError, EngineBusy, InvalidRequest, PluginNotFound
from enginebay.messages import Control, Phase, RestartWorkers, Scale, Sleep, Swap
from support.fake_engine import FakeRunner
from support.swaps import Driven

Make = Callable[..., Driven]


CHANGES: list[Control] = [
    Swap(scheduler="priority"),
    Swap(runner="fake", sets=("runner.options.announce=1",)),
    Swap(scheduler="fair"),
    RestartWorkers(),
    Swap(scheduler="fcfs", runner="fake", sets=("runner.options.announce=0",), exclusive=True),
]


@pytest.mark.parametrize("overlap", ["true", "false"])
def test_any_exchange_at_any_step_changes_no_answer(make: Make, overlap: str) -> None:  # R9, E7
    engine = make(f"scheduler.overlap={overlap}")
    engine.add_load()
    exchanges = 0
    while engine.core.has_work():
        engine.step()
        if engine.core.num_unfinished:
            engine.do(CHANGES[exchanges % len(CHANGES)])
            exchanges += 1
    assert exchanges > 2 * len(CHANGES)
    assert engine.told() == Driven.undisturbed(make)
    assert engine.core.parts.generation.current == exchanges
    stats = engine.core.stats()
    assert stats.scheduler.num_free_blocks == stats.scheduler.num_blocks


def test_what_is_in_force_is_told(make: Make) -> None:
    engine = make()
    engine.add("a")
    engine.step()
    assert engine.do(Swap(scheduler="priority")).facts == {"scheduler": "priority", "generation": "1"}
    assert engine.names() == ["priority", "fake", "uni"]
    facts = engine.core.status().facts
    assert [facts[kind] for kind in ("state", "scheduler", "runner")] == [
        "ready",
        f"scheduler 'priority' {facts['scheduler'].rpartition(' ')[2]}",
        "runner 'fake' 1.0",
    ]
    assert engine.do(Swap(scheduler="priority")).facts == {}
    assert engine.core.parts.generation.current == 1


def test_options_go_with_the_plugin_that_they_are_of(make: Make) -> None:
    engine = make("scheduler.use=fair", "scheduler.options.weights={gold = 3}")
    assert engine.core.in_force["scheduler weights"] == "{gold = 3.0}"
    engine.do(Swap(sets=("scheduler.options.weights={silver = 2}",)))
    assert engine.core.in_force["scheduler weights"] == "{silver = 2.0}"
    engine.do(Swap(scheduler="fcfs"))
    assert "scheduler weights" not in engine.core.in_force


def test_workers_of_the_new_group_are_told_of_and_no_restart_is_counted(make: Make, runners: list[FakeRunner]) -> None:
    engine = make("recovery.max_restarts=0")
    engine.add("a")
    engine.step()
    roster = engine.core.parts.roster
    before = roster.incarnations
    for command in (
        Swap(runner="fake", sets=("runner.options.announce=3",)),
        RestartWorkers(),
        Swap(runner="fake", sets=("runner.options.announce=4",), exclusive=True),
    ):
        engine.do(command)
    assert len(runners) == 4
    now = engine.core.parts.roster
    [status] = now.statuses()
    assert status.phase is Phase.READY
    assert (status.restarts, status.incarnation.generation) == (0, 3)
    assert now.incarnations != before
    assert [slot.name for slot in now.slots] == [slot.name for slot in roster.slots]
    assert engine.core.status().health.healthy  # type: ignore[union-attr]  # it is told
    engine.run()


REFUSED: list[tuple[Control, type[EnginebayError], str]] = [
    (
        Swap(scheduler="nope"),
        PluginNotFound,
        "No scheduler named 'nope' is installed. Installed: ",
    ),
    (
        Swap(scheduler="fair", sets=("scheduler.options.weigths={}",)),
        ConfigError,
        "scheduler 'fair' rejects [scheduler.options]: weigths: unknown option. Did you mean 'weights'?",
    ),
    (
        Swap(runner="fake", sets=("cache.num_blocks=4",)),
        InvalidRequest,
        "swap changes [scheduler], [runner] and [executor], and not 'cache.num_blocks=4': start the engine anew",
    ),
    (
        Swap(sets=("scheduler.use=priority",)),
        InvalidRequest,
        "'scheduler.use=priority' is no option: swap scheduler=priority",
    ),
    (Swap(), InvalidRequest, "nothing is named that is to be exchanged: scheduler, runner or executor"),
    (Scale(), InvalidRequest, "no size is given: tensor_parallel_size, pipeline_parallel_size"),
    (
        Scale(tensor_parallel_size=2),
        CapabilityError,
        "executor 'uni' runs one worker, and [parallel] asks for 2: choose an executor for several",
    ),
    (
        Swap(runner="fake", sets=("runner.options.fail=load_model",)),
        EnginebayError,
        "; what was in force before goes on",
    ),
    (
        Swap(runner="fake", sets=("runner.options.fail=load_model",), exclusive=True),
        EnginebayError,
        "; what was in force before goes on",
    ),
]


@pytest.mark.parametrize(("command", "kind", "text"), REFUSED)
def test_what_cannot_be_is_refused_and_the_old_one_goes_on(
    make: Make, command: Control, kind: type[EnginebayError], text: str
) -> None:
    engine = make("recovery.max_restarts=0")
    engine.add_load()
    engine.step()
    engine.step()
    names, force = engine.names(), engine.core.in_force
    with pytest.raises(kind) as caught:
        engine.do(command)
    assert text in str(caught.value)
    assert (engine.names(), engine.core.in_force) == (names, force)
    assert engine.core.status().facts["state"] == "ready"
    assert engine.core.status().health.healthy  # type: ignore[union-attr]  # it is told
    engine.run()
    assert engine.told() == Driven.undisturbed(make)


def test_an_engine_that_sleeps_is_left_alone(make: Make) -> None:
    engine = make()
    engine.do(Sleep(level=1))
    with pytest.raises(EngineBusy, match=r"^the engine sleeps "):
        engine.do(Swap(scheduler="priority"))
    with pytest.raises(EngineBusy, match=r"^the engine sleeps "):
        engine.do(RestartWorkers())
