"""What the launcher's environment says of a process, and how a world that does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enginebay.config import EngineConfig, Resolved
from enginebay.engine.startup._fit import plan_workers
from enginebay.engine.startup.plan import Plan, plan
from enginebay.errors import CapabilityError
from enginebay.interfaces import OwnRank
from enginebay.plugins import PluginHost
from enginebay_external_launcher import plugin as own_rank_module
from enginebay_external_launcher.environment import NEEDED, own_rank
from support.fake_engine import fake_model_folder
from support.launched import config, site

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "LOCAL_WORLD_SIZE": "2",
}


def launch(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    """The environment that a launcher makes; an empty value takes a variable out."""
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    for name, value in (TORCHRUN | {"RANK": "1", "WORLD_SIZE": "2"} | changes).items():
        if value:
            monkeypatch.setenv(name, value)


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Plans a config of two tensor ranks, with sections changed."""
    monkeypatch.syspath_prepend(str(site(tmp_path / "site")))
    model = str(fake_model_folder(tmp_path / "model"))

    def make(**sections: dict[str, Any]) -> Plan:
        whole = EngineConfig.model_validate(config(model, **sections))
        return plan(Resolved(config=whole), PluginHost())

    return make


def test_torchrun_says_all_of_it() -> None:
    assert own_rank(TORCHRUN) == OwnRank(rank=3, world_size=4, local_rank=1, ranks_per_host=2)


def test_other_launchers_do_not_say_how_many_are_on_a_host() -> None:
    environ = {name: TORCHRUN[name] for name in NEEDED}
    assert own_rank(environ) == OwnRank(rank=3, world_size=4, local_rank=1, ranks_per_host=None)


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        (("RANK",), "RANK is"),
        (("MASTER_ADDR", "MASTER_PORT"), "MASTER_ADDR, MASTER_PORT are"),
        (NEEDED, "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT are"),
    ],
)
def test_missing_variables_are_named_with_what_to_do(gone: tuple[str, ...], named: str) -> None:
    with pytest.raises(CapabilityError) as caught:
        own_rank({name: value for name, value in TORCHRUN.items() if name not in gone})
    assert str(caught.value) == (
        "executor 'external_launcher' runs where a launcher has started one process per rank, and "
        f"{named} not set: start the program with 'torchrun --nproc-per-node N program.py', or with another launcher "
        "that sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; or choose executor 'mp', which starts "
        "its workers itself"
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"RANK": "one"}, "RANK = 'one' in the environment is not the number that a launcher sets"),
        ({"RANK": "-1"}, "RANK = '-1' in the environment is not the number that a launcher sets"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE = '0' in the environment is not the number that a launcher sets"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE = '0' in the environment is not the number that a launcher sets"),
        ({"RANK": "4"}, "RANK = 4, and WORLD_SIZE = 4: the ranks are 0 to 3"),
    ],
)
def test_what_makes_no_sense_is_refused(changed: dict[str, str], message: str) -> None:
    with pytest.raises(CapabilityError) as caught:
        own_rank(TORCHRUN | changed)
    assert str(caught.value) == message


def test_the_plan_is_the_whole_worlds_with_one_rank_of_its_own(planned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch)
    world = planned().world
    assert (len(world.ranks), world.own_ranks, world.output_rank) == (2, (1,), 1)
    assert [place.rank for place in world.own_places] == [1]


def test_places_on_several_hosts() -> None:
    parallel = EngineConfig.model_validate(
        {"parallel": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}}
    ).parallel
    world = plan_workers(parallel, OwnRank(rank=3, world_size=4, local_rank=1, ranks_per_host=2))
    assert [(one.rank, one.local_rank, one.node, one.tensor_rank, one.pipeline_rank) for one in world.ranks] == [
        (0, 0, 0, 0, 0),
        (1, 1, 0, 1, 0),
        (2, 0, 1, 0, 1),
        (3, 1, 1, 1, 1),
    ]
    uneven = plan_workers(parallel, OwnRank(rank=3, world_size=4, local_rank=7))
    assert [(one.local_rank, one.node) for one in uneven.ranks] == [(0, 0), (1, 0), (2, 0), (7, 0)]


def test_a_world_of_one_has_nobody_to_agree_with(planned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    assert planned(parallel={"tensor_parallel_size": 1}).world.own_ranks is None


def test_a_world_of_another_size_is_refused_with_both_numbers(  # P8
    planned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(monkeypatch, WORLD_SIZE="4")
    with pytest.raises(CapabilityError) as caught:
        planned()
    assert str(caught.value) == (
        "the launcher has started 4 ranks, and [parallel] asks for 2 (tensor_parallel_size 2 times "
        "pipeline_parallel_size 1): start as many as are asked for, or change [parallel]"
    )


def test_a_scheduler_without_an_order_is_refused(planned: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # P8
    launch(monkeypatch)
    with pytest.raises(CapabilityError) as caught:
        planned(scheduler={"use": "lottery"})
    assert str(caught.value) == (
        "scheduler 'lottery' declares no deterministic order, and executor 'external_launcher' runs one scheduler per "
        "rank: choose another scheduler or executor 'mp'."
    )


def test_ends_by_the_clock_are_refused(planned: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # P8
    launch(monkeypatch)
    with pytest.raises(CapabilityError) as caught:
        planned(deadlines={"request": 60.0})
    assert str(caught.value) == (
        "[deadlines] request = 60 cannot be kept: executor 'external_launcher' runs one scheduler per rank, and their "
        "clocks differ; leave it out"
    )


def test_copies_are_refused(planned: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # P8
    launch(monkeypatch)
    with pytest.raises(
        CapabilityError, match=r"^\[parallel\] data_parallel_size is 2, and executor 'external_launcher'"
    ):
        planned(parallel={"tensor_parallel_size": 2, "data_parallel_size": 2})


def test_an_executor_that_does_not_say_its_rank(planned: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # P8
    launch(monkeypatch)
    monkeypatch.setattr(own_rank_module, "own_rank", None)
    with pytest.raises(CapabilityError) as caught:
        planned()
    assert str(caught.value) == (
        "executor 'external_launcher' declares every_rank_schedules, and no own_rank: its author must say which of the "
        "2 ranks a process is"
    )


def test_capabilities() -> None:
    capabilities = PluginHost().load_executor("external_launcher", {}).plugin.capabilities
    assert capabilities.every_rank_schedules
    assert capabilities.maps_devices
    assert capabilities.attaches
    assert capabilities.multi_node
    assert not capabilities.restartable
    assert (capabilities.max_in_flight, capabilities.max_world_size) == (2, None)
