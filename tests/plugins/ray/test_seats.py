"""Who sits where, what travels, and what is said when there is no place: without Ray."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.errors import StartFailed
from enginebay.messages import RankPlace, StartPayload, WorldPlan
from enginebay.testing.fakes import fake_model
from enginebay_ray.environment import environment_of_workers
from enginebay_ray.seats import Node, Seat, cannot_place, check_indices, in_order, seated


def node(name: str, address: str = "", **resources: float) -> Node:
    return Node(node_id=name, address=address or f"10.0.0.{ord(name[0]) - ord('a') + 1}", resources=resources)


def seats(names: Sequence[str]) -> dict[int, Seat]:
    return {rank: Seat(bundle=rank, node=node(name)) for rank, name in enumerate(names)}


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12), st.sampled_from("abcde"))
def test_ranks_of_a_node_are_together_and_the_engines_node_is_first(names: list[str], here: str) -> None:  # X16
    ordered = in_order({bundle: node(name) for bundle, name in enumerate(names)}, here)
    assert sorted(seat.bundle for seat in ordered) == list(range(len(names)))
    seen = [seat.node.node_id for seat in ordered]
    assert len({(a, b) for a, b in itertools.pairwise(seen) if a != b}) == len(set(seen)) - 1
    if here in names:
        assert seen[0] == here
    assert all(a.bundle < b.bundle for a, b in itertools.pairwise(ordered) if a.node.node_id == b.node.node_id)


def test_addresses_are_ordered_as_numbers() -> None:  # X16
    bundles = {0: node("x", "10.0.0.10"), 1: node("y", "10.0.0.9"), 2: node("z", "10.0.0.10"), 3: node("v", "fe80::1")}
    assert [seat.bundle for seat in in_order(bundles, "nowhere")] == [3, 1, 0, 2]


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([0], "names 1, and there are 2 workers: one bundle for each rank"),
        ([0, 1, 2], "names 3, and there are 2 workers: one bundle for each rank"),
        ([1, 1], "names 1 more than once: each rank needs its own bundle"),
        ([0, 3], "names 3, and the placement group has 3 bundles: 0 to 2"),
        ([-1, 0], "names -1, and the placement group has 3 bundles: 0 to 2"),
    ],
)
def test_bundle_indices_are_checked(indices: list[int], words: str) -> None:  # X16
    with pytest.raises(StartFailed) as caught:
        check_indices(indices, workers=2, bundles=3)
    assert str(caught.value) == f"[executor.options] bundle_indices = {indices} {words}"


def test_good_bundle_indices_pass() -> None:  # X16
    check_indices([2, 0], workers=2, bundles=3)


def payload(rank: int, ranks: int) -> StartPayload:
    places = tuple(RankPlace(rank=r, local_rank=r, tensor_rank=r) for r in range(ranks))
    return StartPayload(
        incarnation="i",
        generation=0,
        place=places[rank],
        world=WorldPlan(ranks=places),
        config="{}",
        model=fake_model(),
        runner="fake",
        block_size=16,
        max_model_len=16,
        max_num_seqs=1,
        max_num_batched_tokens=16,
    )


def test_the_workers_are_told_their_nodes() -> None:
    taken = seats(["b", "b", "a", "b"])
    told = [seated(payload(rank, 4), taken) for rank in range(4)]
    for rank, one in enumerate(told):
        assert [(place.node, place.local_rank) for place in one.world.ranks] == [(0, 0), (0, 1), (1, 0), (0, 2)]
        assert one.place == one.world.ranks[rank]
        assert one.place.tensor_rank == rank
        before = payload(rank, 4)
        assert msgspec.structs.replace(one, world=before.world, place=before.place) == before


def test_a_world_that_names_one_rank_keeps_it() -> None:
    alone = payload(1, 2)
    alone = msgspec.structs.replace(alone, world=WorldPlan(ranks=(alone.place,)))
    told = seated(alone, seats(["a", "b"]))
    assert told.world.ranks == (told.place,)
    assert (told.place.node, told.place.local_rank) == (1, 0)


def test_a_place_that_cannot_be_had_is_told_with_both_sides() -> None:  # X16
    nodes = [node("a", CPU=4.0, memory=1e9), node("b", CPU=2.0, GPU=1.0)]
    assert cannot_place({"CPU": 4.0, "GPU": 1}, 2, "PACK", nodes, {"CPU": 1.5}) == (
        "Ray could not place 2 workers of CPU 4, GPU 1 each (strategy PACK) before the start's deadline. "
        "The cluster has node 10.0.0.1: CPU 4, GPU 0; node 10.0.0.2: CPU 2, GPU 1; free in all: CPU 1.5, GPU 0. "
        "Free or add what is missing, or ask for less in [executor.options] or [parallel]"
    )
    assert "The cluster has no node" in cannot_place({"CPU": 1}, 1, "PACK", [], {})


ENVIRON = {
    "ENGINEBAY_CACHE": "/models",
    "ENGINEBAY__SERVER__KEY": "secret",
    "ENGINEBAY_RUN": "/run",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
    "TORCH_LOGS": "x",
    "NCCL_DEBUG": "INFO",
    "HF_HUB_OFFLINE": "1",
    "MINE": "mine",
    "HOME": "/root",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "CUDA_VISIBLE_DEVICES": "0",
    "RAY_ADDRESS": "here",
}


def test_the_environment_that_travels() -> None:  # X16
    always = {
        "ENGINEBAY_CACHE": "/models",
        "HF_HUB_OFFLINE": "1",
        "NCCL_DEBUG": "INFO",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
        "TORCH_LOGS": "x",
    }
    assert environment_of_workers([], ENVIRON) == always
    assert environment_of_workers(["MINE"], ENVIRON) == {**always, "MINE": "mine"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "TYPO",
            "which is not set in the engine's environment: set it, or remove it from the list",
        ),
        ("CUDA_VISIBLE_DEVICES", "which Ray itself gives its workers: remove it"),
        ("RAY_ADDRESS", "which Ray itself gives its workers: remove it"),
    ],
)
def test_an_environment_that_cannot_travel(name: str, words: str) -> None:  # X16
    with pytest.raises(StartFailed) as caught:
        environment_of_workers([name], ENVIRON)
    assert str(caught.value) == f"[executor.options] env names {name}, {words}"
