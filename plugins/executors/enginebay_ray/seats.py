"""Which bundle of a placement group each rank gets, and what to say when there is none: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from enginebay.errors import StartFailed
from enginebay.messages import RankPlace, StartPayload

__all__ = ["Node", "Seat", "cannot_place", "check_indices", "in_order", "seated"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node of the cluster: Ray's id, the address at which the others reach it, and what it has in all."""

    node_id: str
    address: str
    resources: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where one rank's actor goes."""

    bundle: int
    node: Node


def in_order(bundles: Mapping[int, Node], here: str) -> list[Seat]:
    """The bundles with those of a node next to each other: this node's (id ``here``) first, then by address."""

    def key(item: tuple[int, Node]) -> tuple[bool, tuple[int | str, ...], str, int]:
        bundle, node = item
        return node.node_id != here, _numbers(node.address), node.node_id, bundle

    return [Seat(bundle=bundle, node=node) for bundle, node in sorted(bundles.items(), key=key)]


def check_indices(indices: Sequence[int], *, workers: int, bundles: int) -> None:
    """Raise ``StartFailed`` unless ``indices`` names a different bundle of the group for each worker."""
    said = f"[executor.options] bundle_indices = {list(indices)}"
    if len(indices) != workers:
        raise StartFailed(f"{said} names {len(indices)}, and there are {workers} workers: one bundle for each rank")
    if len(set(indices)) != len(indices):
        twice = sorted({index for index in indices if indices.count(index) > 1})
        raise StartFailed(f"{said} names {', '.join(map(str, twice))} more than once: each rank needs its own bundle")
    outside = [index for index in indices if not 0 <= index < bundles]
    if outside:
        raise StartFailed(
            f"{said} names {', '.join(map(str, outside))}, and the placement group has {bundles} bundles: "
            f"0 to {bundles - 1}"
        )


def seated(payload: StartPayload, seats: Mapping[int, Seat]) -> StartPayload:
    """The payload with each rank's node, and its number among the ranks of that node, as Ray chose them."""
    nodes = list(dict.fromkeys(seat.node.node_id for seat in seats.values()))

    def place(was: RankPlace) -> RankPlace:
        own = seats[was.rank].node.node_id
        before = sum(seat.node.node_id == own for rank, seat in seats.items() if rank < was.rank)
        return msgspec.structs.replace(was, node=nodes.index(own), local_rank=before)

    world = msgspec.structs.replace(payload.world, ranks=tuple(place(one) for one in payload.world.ranks))
    return msgspec.structs.replace(payload, world=world, place=place(payload.place))


def cannot_place(
    asked: Mapping[str, float], workers: int, strategy: str, nodes: Sequence[Node], free: Mapping[str, float]
) -> str:
    """What was asked for and what the cluster has, in one line."""
    have = "; ".join(f"node {node.address}: {_amounts(node.resources, asked)}" for node in nodes) or "no node"
    return (
        f"Ray could not place {workers} worker{'' if workers == 1 else 's'} of {_amounts(asked, asked)} each "
        f"(strategy {strategy}) before the start's deadline. The cluster has {have}; free in all: "
        f"{_amounts(free, asked)}. Free or add what is missing, or ask for less in [executor.options] or [parallel]"
    )


def _amounts(have: Mapping[str, float], of: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {have.get(name, 0):g}" for name in of) or "nothing"


def _numbers(address: str) -> tuple[int | str, ...]:
    """Addresses in their own order: 10.0.0.9 before 10.0.0.10."""
    parts = address.split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else (0, address)
