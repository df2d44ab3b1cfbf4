"""The actors: how they are made, which devices Ray gave them, and how they are ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from enginebay.errors import StartFailed, one_line
from enginebay.runtime import Runtime
from enginebay_ray.actor import RayWorker
from enginebay_ray.door import load_ray
from enginebay_ray.placement import Placement
from enginebay_ray.seats import Seat

__all__ = ["answer", "bounded", "devices_by_node", "end_actors", "make_actor", "settle", "stacks_of"]

T = TypeVar("T")


def make_actor(placement: Placement, seat: Seat, name: str) -> Any:
    """An actor in its seat, under a name that no other life of it has. It is never restarted: that is the core's."""
    ray = load_ray()
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    others = {name: amount for name, amount in placement.asked.items() if name not in ("CPU", "GPU")}
    options = {
        "name": name,
        "num_cpus": placement.asked.get("CPU", 0),
        "num_gpus": placement.gpus,
        "resources": others or None,
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": 2,  # one call is the worker's life, the other asks for its stacks
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            placement_group=placement.group, placement_group_bundle_index=seat.bundle
        ),
    }
    return ray.remote(RayWorker).options(**options).remote()


def devices_by_node(actors: Mapping[int, Any], placement: Placement, seconds: float) -> dict[int, tuple[str, str]]:
    """For each rank Ray's numbers of its own devices, and those of all ranks on its node in rank order.

    Ranks of a node that see each other's devices can copy between them directly; a rank's first one is then the one
    with its local rank.
    """
    if not placement.gpus:
        return {}
    ray = load_ray()
    asked = [actors[rank].devices.remote() for rank in sorted(actors)]
    try:
        own = dict(zip(sorted(actors), ray.get(asked, timeout=seconds), strict=True))
    except Exception as error:
        words = one_line(f"{type(error).__name__}: {error}")
        raise StartFailed(f"Ray's actors did not say which devices they were given: {words}") from error
    nodes = {rank: seat.node.node_id for rank, seat in zip(sorted(actors), placement.seats, strict=True)}
    return {
        rank: (own[rank], ",".join(own[other] for other in sorted(actors) if nodes[other] == nodes[rank]))
        for rank in actors
    }


def end_actors(actors: Mapping[int, Any]) -> None:
    """Kill what still runs; Ray is told, and does it in its own time."""
    ray = load_ray()
    for actor in actors.values():
        with contextlib.suppress(Exception):  # it has ended, or Ray has: nothing is left to kill
            ray.kill(actor, no_restart=True)


def stacks_of(actors: Mapping[int, Any], runtime: Runtime, deadline: float) -> dict[int, str]:
    """What their threads are in, of those that say so by ``deadline`` (monotonic seconds)."""
    ray = load_ray()
    asked = {actor.stacks.remote(): rank for rank, actor in actors.items()}
    answers: dict[int, str] = {}

    def ask() -> None:
        left = max(0.0, deadline - runtime.clock.now())
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=left)
        for ref in ready:
            answers[asked[ref]] = ray.get(ref)

    if asked:
        bounded(runtime, "stacks", ask, deadline)
    return dict(answers)


def bounded(runtime: Runtime, name: str, what: Callable[[], object], deadline: float) -> bool:
    """Do something with Ray that may hang when the cluster is gone; whether it was done by ``deadline``."""

    def work() -> None:
        with contextlib.suppress(Exception):  # the cluster is gone, and with it what was to be given back
            what()

    try:
        answer(runtime, name, work, deadline)
    except TimeoutError:
        return False
    return True


def answer(
    runtime: Runtime, name: str, what: Callable[[], T], deadline: float, undo: Callable[[T], object] = lambda late: None
) -> T:
    """What Ray answers, which never comes when the cluster is gone: ``TimeoutError`` at ``deadline`` (monotonic s).

    ``undo`` is given an answer that came too late.
    """
    done: Future[T] = Future()

    def work() -> None:
        try:
            value = what()
        except BaseException as error:
            if done.set_running_or_notify_cancel():
                done.set_exception(error)
            return
        if done.set_running_or_notify_cancel():
            done.set_result(value)
        else:
            undo(value)

    runtime.spawner.thread(f"enginebay-ray-{name}", work)
    try:
        return runtime.wait(done, deadline)
    except TimeoutError:
        if done.cancel():
            raise
        return runtime.wait(done, None)  # it is being set, or says itself that its time is over


def settle(future: Future[Any], value: Any) -> None:
    """Set a result, or an error that is one, unless another who knows has done so."""
    try:
        if isinstance(value, Exception):
            future.set_exception(value)
        else:
            future.set_result(value)
    except InvalidStateError:
        return  # it was settled by the other who knows
