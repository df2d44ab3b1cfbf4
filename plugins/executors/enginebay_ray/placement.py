"""Asks Ray for a place for each rank, and gives it back."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from enginebay.errors import StartFailed, one_line
from enginebay_ray.door import load_ray
from enginebay_ray.options import RayOptions
from enginebay_ray.seats import Node, Seat, cannot_place, check_indices, in_order

__all__ = ["Placement", "place_workers"]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A placement group of Ray, the seat of each rank in it, and what each actor may ask Ray for."""

    group: Any
    is_ours: bool
    seats: tuple[Seat, ...]
    asked: dict[str, float]
    gpus: int

    @property
    def is_on_one_node(self) -> bool:
        """Whether all ranks are on the engine's own node."""
        return {seat.node.node_id for seat in self.seats} == {_here()}

    def remove(self) -> None:
        """Give our group back, with whatever runs in it."""
        if self.is_ours:
            ray = load_ray()
            ray.util.remove_placement_group(self.group)


def place_workers(options: RayOptions, workers: int, seconds: float) -> Placement:
    """Reserve a bundle for each of the workers; raises ``StartFailed`` after ``seconds``, saying what is missing."""
    ray = load_ray()
    nodes = _nodes()
    gpus = options.gpus_per_worker
    if gpus is None:
        gpus = int(any(node.resources.get("GPU", 0) >= 1 for node in nodes.values()))
    asked = {"CPU": options.cpus_per_worker, **({"GPU": gpus} if gpus else {}), **options.resources}
    asked = {name: amount for name, amount in asked.items() if amount}
    if options.placement_group is not None:
        try:
            group = ray.util.get_placement_group(options.placement_group)
        except ValueError as error:
            raise StartFailed(
                f"[executor.options] placement_group = '{options.placement_group}': {one_line(str(error))}"
            ) from None
        number = group.bundle_count
        if number < workers:
            raise StartFailed(
                f"placement group '{options.placement_group}' has {number} bundles, and there are {workers} workers: "
                "one bundle for each rank"
            )
    else:
        number = workers
    if options.bundle_indices is not None:
        check_indices(options.bundle_indices, workers=workers, bundles=number)
    if options.placement_group is None:
        # a bundle of nothing is refused by Ray: it gets a sliver of what every node has
        group = ray.util.placement_group([asked or {"CPU": 0.001}] * workers, strategy=options.strategy)
    placed = False
    try:
        placed = group.wait(seconds)
        if not placed:
            free = ray.available_resources()
            raise StartFailed(cannot_place(asked, workers, options.strategy, list(_nodes().values()), free))
    finally:
        if not placed and options.placement_group is None:
            with contextlib.suppress(Exception):  # Ray has gone, and with it the group
                ray.util.remove_placement_group(group)
    nodes = _nodes()
    where = ray.util.placement_group_table(group)["bundles_to_node_id"]
    bundles = {int(index): nodes[node_id] for index, node_id in where.items()}
    if options.bundle_indices is not None:
        seats = [Seat(bundle=index, node=bundles[index]) for index in options.bundle_indices]
    else:
        seats = in_order(bundles, _here())[:workers]
    return Placement(group=group, is_ours=options.placement_group is None, seats=tuple(seats), asked=asked, gpus=gpus)


def _here() -> str:
    ray = load_ray()
    return str(ray.get_runtime_context().get_node_id())


def _nodes() -> dict[str, Node]:
    ray = load_ray()
    return {
        node["NodeID"]: Node(
            node_id=node["NodeID"], address=node["NodeManagerAddress"], resources=node.get("Resources", {})
        )
        for node in ray.nodes()
        if node["Alive"]
    }
