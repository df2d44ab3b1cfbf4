"""Worlds of several ranks: they meet, stay on this machine, leave, and are told when one of them is lost. X9"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginebay.engine.startup.rendezvous import Rendezvous
from enginebay.errors import CapabilityError, StartFailed
from enginebay.messages import RankPlace, WorkerInfo, WorldPlan
from enginebay.runtime import Entropy
from enginebay.worker.distributed import join_world
from support.rank_models import world_of
from support.ranks import Herd
from support.scripted_device import ScriptedDevice

pytestmark = pytest.mark.timeout(300)
FOUR = world_of(2, 2)


@pytest.fixture(scope="module")
def herd() -> Iterator[Herd]:
    with Herd("support.rank_worlds", "enginebay.worker.parallel.collectives", "enginebay.worker.device") as made:
        yield made


def test_four_ranks_meet_in_their_groups_and_listen_on_loopback_alone(herd: Herd, tmp_path: Path) -> None:
    told = herd.run("support.rank_worlds:meet", 4, {"sizes": [2, 2]}, tmp_path)
    expected = [[1111.0, 11.0, 101.0], [1111.0, 11.0, 1010.0], [1111.0, 1100.0, 101.0], [1111.0, 1100.0, 1010.0]]
    assert [one["sums"] for one in told] == [sums * 2 for sums in expected]
    assert {ip for one in told for ip in one["listening"]} == {"127.0.0.1"}
    assert all(one["left"] and one["environ"] is None for one in told)


def test_a_world_of_an_owner_is_used_and_left_to_it(herd: Herd, tmp_path: Path) -> None:
    told = herd.run("support.rank_worlds:meet_as_owned", 2, None, tmp_path)
    for rank, one in enumerate(told):
        assert (one["in"], one["after"]) == (2.0, 2.0)
        assert one["refused"] == (
            f"rank {rank} runs in a process that is part of another torch.distributed world already: start its ranks "
            "with an executor for worlds that exist (external_launcher), or in processes of their own"
        )


@pytest.mark.parametrize("how", ["kill", "leave", "hang"])
def test_the_loss_of_a_peer_is_an_error_that_names_it(herd: Herd, tmp_path: Path, how: str) -> None:
    """A killed one, one that failed and left, one that does not answer within the collective's time."""
    timeout = 2.0 if how == "hang" else 120.0
    argument = {"how": how, "timeout": timeout}
    with herd.ranks("support.rank_worlds:lose_one", 2, argument, tmp_path) as ranks:
        told = ranks.answer(0, 100)
    assert told["told"].startswith(
        "rank 1 was lost to rank 0 in a collective (sum of a layer's parts): it has ended, failed, or is stuck: "
    )
    assert "\n" not in told["told"]
    assert told["left"]


def test_a_rank_whose_peers_do_not_come_says_so(tmp_path: Path) -> None:
    """In this process: nothing of the attempt is left in it."""
    import torch.distributed as dist

    from enginebay.worker.device import TorchDevice

    place = (tmp_path / "store").as_uri()
    with pytest.raises(StartFailed) as caught:
        join_world(FOUR.ranks[1], FOUR, TorchDevice("cpu"), place, 0.5)
    assert str(caught.value).startswith(
        "rank 1 did not meet the other 3 ranks of its world within 0.5 s ([deadlines] collective), by file: "
    )
    assert not dist.is_initialized()


def test_a_device_without_a_backend_has_no_world() -> None:
    class Alone(ScriptedDevice):
        def collective_backend(self) -> str:
            return ""

    with pytest.raises(CapabilityError) as caught:
        join_world(FOUR.ranks[2], FOUR, Alone(), "file:///nowhere/store", 1.0)
    assert str(caught.value).startswith("rank 2 belongs to a world of 4 ranks, and ")


def test_one_rank_joins_nothing() -> None:
    membership = join_world(RankPlace(), WorldPlan(), ScriptedDevice(), "", 1.0)
    assert (membership.groups.world, membership.groups.tensor, membership.groups.pipeline) == (None, None, None)
    assert membership.leave()


# ---- where they meet


def workers(*hosts: str, address: str = "") -> list[WorkerInfo]:
    return [
        WorkerInfo(rank=rank, local_rank=rank, incarnation=str(rank), host=host, pid=1, address=address)
        for rank, host in enumerate(hosts)
    ]


def test_on_one_host_they_meet_at_a_file_of_each_generation(tmp_path: Path) -> None:
    rendezvous = Rendezvous(lambda: tmp_path, Entropy(1))
    first = rendezvous.open(FOUR, workers("a", "a", "a", "a"), 3)
    assert first.startswith((tmp_path / "store-3-").as_uri())
    Path(first.removeprefix("file://")).write_text("of a rank that was killed")
    second = rendezvous.open(FOUR, workers("a", "a", "a", "a"), 4)
    assert second.startswith((tmp_path / "store-4-").as_uri())
    assert not [*tmp_path.iterdir()], "the last generation's is gone"
    rendezvous.close()
    rendezvous.close()


def test_workers_without_addresses_are_taken_to_be_here(tmp_path: Path) -> None:
    assert Rendezvous(lambda: tmp_path, Entropy(1)).open(FOUR, workers("a", "b"), 0).startswith("file://")


def test_one_rank_and_ranks_of_an_owner_need_no_place() -> None:
    def no_folder() -> Path:
        raise AssertionError("nothing is to be made")

    rendezvous = Rendezvous(no_folder, Entropy(1))
    assert rendezvous.open(WorldPlan(), workers("a"), 0) == ""
    assert rendezvous.open(WorldPlan(ranks=FOUR.ranks, own_ranks=(2,)), workers("a"), 0) == "env"


def test_across_hosts_they_meet_at_a_store_on_one_address_of_ours(herd: Herd, tmp_path: Path) -> None:
    """One that the ranks reach, with the port open on no other address; gone when it is closed."""
    rendezvous = Rendezvous(lambda: tmp_path, Entropy(1))
    place = rendezvous.open(FOUR, workers(socket.gethostname(), "elsewhere", address="127.0.0.1"), 2)
    assert place.startswith("tcp://127.0.0.1:")
    assert "/store-2-" in place
    port = int(place.split(":")[2].partition("/")[0])
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), timeout=5)
    told = herd.run("support.rank_worlds:meet", 2, {"sizes": [2, 1], "rendezvous": place}, tmp_path / "ranks")
    assert [one["sums"] for one in told] == [[11.0, 11.0, 1.0] * 2, [11.0, 11.0, 10.0] * 2]
    rendezvous.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_an_address_that_is_not_ours_is_said(tmp_path: Path) -> None:
    rendezvous = Rendezvous(lambda: tmp_path, Entropy(1))
    with pytest.raises(StartFailed, match=r"^the ranks' store cannot listen on 192\.0\.2\.1: .*an address of this mac"):
        rendezvous.open(FOUR, workers(socket.gethostname(), "b", address="192.0.2.1"), 0)
