"""Local rank to device index: the table."""

from __future__ import annotations

import pytest

from enginebay.errors import CapabilityError
from enginebay.messages import RankPlace, WorldPlan
from enginebay.worker.mapping import device_index


def plan(tensor: int = 1, pipeline: int = 1, *, nodes: int = 1, per_rank: int = 1, **more: int | None) -> WorldPlan:
    size = tensor * pipeline
    per_node = max(1, size // nodes)
    return WorldPlan(
        ranks=tuple(RankPlace(rank=r, local_rank=r % per_node, node=r // per_node) for r in range(size)),
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        devices_per_rank=per_rank,
        **more,  # type: ignore[arg-type]  # the numbers of the table
    )


@pytest.mark.parametrize(
    ("world", "local_rank", "maps_devices", "ids", "expected"),
    [
        (plan(), 0, False, None, 0),
        (plan(2), 1, False, None, 1),
        (plan(2, 2), 3, False, None, 3),
        # replicas of one node stand one after the other
        (plan(2, data_parallel_size=2, data_parallel_rank_local=1), 0, False, None, 2),
        (plan(2, 2, data_parallel_size=2, data_parallel_rank_local=1), 3, False, None, 7),
        # unset local replica: the index of the replica
        (plan(2, data_parallel_size=4, data_parallel_index=3), 1, False, None, 7),
        (plan(2, data_parallel_size=4, data_parallel_index=3, data_parallel_rank_local=0), 1, False, None, 1),
        # the executor gives each worker its own devices
        (plan(2, data_parallel_size=2, data_parallel_rank_local=1), 1, True, None, 1),
        # a replica that spans nodes has each of them alone
        (plan(4, nodes=2, data_parallel_size=2, data_parallel_index=1), 1, False, None, 1),
        # ids are in rank order
        (plan(2), 0, False, (5, 3), 5),
        (plan(2), 1, False, (5, 3), 3),
        (plan(1, data_parallel_size=2, data_parallel_index=1), 0, False, (6, 2), 2),
        # one rank drives several devices: its first
        (plan(2, per_rank=4), 1, False, None, 4),
        (plan(2, per_rank=2), 1, False, (7, 6, 5, 4), 5),
    ],
)
def test_table(
    world: WorldPlan, local_rank: int, maps_devices: bool, ids: tuple[int, ...] | None, expected: int
) -> None:
    place = RankPlace(rank=local_rank, local_rank=local_rank)
    assert device_index(place, world, maps_devices=maps_devices, kind="cuda", visible=8, ids=ids) == expected


def test_all_ranks_share_the_cpu() -> None:
    world = plan(4, data_parallel_size=2, data_parallel_index=1)
    assert device_index(RankPlace(rank=3, local_rank=3), world, maps_devices=False, kind="cpu", visible=1) == 0


@pytest.mark.parametrize(
    ("world", "place", "visible", "ids", "message"),
    [
        (
            plan(2),
            RankPlace(rank=1, local_rank=1),
            1,
            None,
            (
                "rank 1 (local rank 1) needs cuda device 1, and this process sees 1 cuda device (0) through SEEN. Make "
                "more devices visible, or lower tensor_parallel_size, pipeline_parallel_size or data_parallel_size in "
                "[parallel]"
            ),
        ),
        (
            plan(4, 2, data_parallel_size=2, data_parallel_index=1),
            RankPlace(rank=0),
            8,
            None,
            (
                "rank 0 (local rank 0) needs cuda device 8, and this process sees 8 cuda devices (0 to 7) through SEEN."
                " Make more devices visible, or lower tensor_parallel_size, pipeline_parallel_size or "
                "data_parallel_size in [parallel]"
            ),
        ),
        (
            plan(2),
            RankPlace(rank=1, local_rank=1),
            8,
            (4,),
            (
                "rank 1 (local rank 1) needs entry 1 of [device] ids, which has 1: [4]. Name a device for every rank, "
                "or remove ids"
            ),
        ),
        (
            plan(),
            RankPlace(),
            2,
            (9,),
            (
                "rank 0 (local rank 0) needs cuda device 9, and this process sees 2 cuda devices (0 to 1) through SEEN."
                " Make more devices visible, or lower tensor_parallel_size, pipeline_parallel_size or "
                "data_parallel_size in [parallel]"
            ),
        ),
    ],
)
def test_out_of_range_names_rank_index_and_what_is_visible(
    world: WorldPlan, place: RankPlace, visible: int, ids: tuple[int, ...] | None, message: str
) -> None:
    with pytest.raises(CapabilityError) as caught:
        device_index(place, world, maps_devices=False, kind="cuda", visible=visible, ids=ids, visible_env="SEEN")
    assert str(caught.value) == message


@pytest.mark.parametrize("index", [-1, 2])
def test_an_id_that_is_not_there(index: int) -> None:
    with pytest.raises(CapabilityError, match=f"needs cuda device {index}, and this process sees 2 cuda devices"):
        device_index(RankPlace(), plan(), maps_devices=False, kind="cuda", visible=2, ids=(index,))


def test_several_devices_must_all_be_there() -> None:
    with pytest.raises(CapabilityError, match="needs cuda device 2, and this process sees 3"):
        device_index(RankPlace(rank=1, local_rank=1), plan(2, per_rank=2), maps_devices=False, kind="cuda", visible=3)


def test_ids_mean_nothing_on_the_host() -> None:
    with pytest.raises(CapabilityError) as caught:
        device_index(RankPlace(), plan(), maps_devices=False, kind="cpu", visible=1, ids=(0,))
    assert str(caught.value) == (
        "[device] ids = [0] names devices, and kind 'cpu' has only the host: remove ids, or set [device] kind"
    )
