"""Whether the parts fit each other: pure functions over descriptors. Nothing that does not fit is degraded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from enginebay.config import EngineConfig, ParallelConfig
from enginebay.engine.startup._choose import unfit
from enginebay.errors import CapabilityError
from enginebay.interfaces import ExecutorPlugin, GraphPass, OwnRank, RunnerPlugin, SchedulerPlugin
from enginebay.messages import ModelInfo, RankPlace, WorldPlan

Executors = Callable[[], Iterable[ExecutorPlugin[Any]]]
"""The installed ones, loaded when they are asked for: a way out is told where something does not fit."""


def plan_workers(parallel: ParallelConfig, own: OwnRank | None = None) -> WorldPlan:
    """Tensor times pipeline ranks with one device each, tensor ranks next to each other.

    The first rank of the last pipeline stage answers with tokens. ``own``: every rank has an engine of its own, and
    this is the one here, to which its worker answers.
    """
    tensor, pipeline = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    per_host = tensor * pipeline if own is None or own.ranks_per_host is None else own.ranks_per_host
    ranks = [
        RankPlace(
            rank=rank,
            local_rank=rank % per_host,
            tensor_rank=rank % tensor,
            pipeline_rank=rank // tensor,
            node=rank // per_host,
        )
        for rank in range(tensor * pipeline)
    ]
    if own is not None:
        ranks[own.rank] = msgspec.structs.replace(ranks[own.rank], local_rank=own.local_rank)
    return WorldPlan(
        ranks=tuple(ranks),
        output_rank=own.rank if own is not None else (pipeline - 1) * tensor,
        own_ranks=(own.rank,) if own is not None and len(ranks) > 1 else None,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        data_parallel_size=parallel.data_parallel_size,
    )


def check_executor(config: EngineConfig, executor: ExecutorPlugin[Any], executors: Executors) -> None:
    """Raise ``CapabilityError`` when the executor cannot run as many workers as ``[parallel]`` asks for.

    ``executors`` are the installed ones, for the way out. Asked before a runner is chosen, whose reasons would be
    beside the point.
    """
    _refuse(_world(config, executor, executors) or _devices(config, executor))


def check_fit(
    config: EngineConfig,
    *,
    executor: ExecutorPlugin[Any],
    runner: RunnerPlugin[Any],
    scheduler: SchedulerPlugin[Any],
    model: ModelInfo,
    executors: Executors,
) -> None:
    """Raise ``CapabilityError`` for the first thing that does not fit; ``executors`` are the installed ones."""
    _refuse(_runner(config, runner, model) or _order(config, executor, scheduler, executors) or _wishes(config, runner))


def check_passes(passes: Sequence[GraphPass], runner: RunnerPlugin[Any]) -> None:
    """Raise ``CapabilityError`` when graph passes were asked for, and there will be no graph."""
    if not runner.capabilities.captures_graph:
        _refuse(
            f"graph pass '{passes[0].name}' of {passes[0].package} has nothing to rewrite: runner '{runner.name}' "
            "captures no graph. Choose a runner that does, or take the pass's extension out of [worker] extensions"
        )


def _refuse(reason: str | None) -> None:
    if reason:
        raise CapabilityError(reason)


def _world(config: EngineConfig, executor: ExecutorPlugin[Any], executors: Executors) -> str | None:
    parallel = config.parallel
    if parallel.data_parallel_size > 1 and executor.capabilities.every_rank_schedules:
        return (
            f"[parallel] data_parallel_size is {parallel.data_parallel_size}, and executor '{executor.name}' has an "
            "engine in every rank, which runs one copy of the model: set it to 1, or choose another executor."
        )
    asked, most = parallel.tensor_parallel_size * parallel.pipeline_parallel_size, executor.capabilities.max_world_size
    if most is None or asked <= most:
        return None
    runs = "one worker" if most == 1 else f"at most {most} workers"
    other = _another(config, executor, executors)
    way_out = (
        f"choose an executor for several, for example '{other}'."
        if other
        else "set tensor_parallel_size and pipeline_parallel_size to 1; no executor for as many is installed."
    )
    return f"executor '{executor.name}' runs {runs}, and [parallel] asks for {asked}: {way_out}"


def _runner(config: EngineConfig, runner: RunnerPlugin[Any], model: ModelInfo) -> str | None:
    reason = unfit(runner, config, model)
    if reason is None:
        return None
    return f"runner '{runner.name}' does not fit: {reason}. Change one of the two."


def _devices(config: EngineConfig, executor: ExecutorPlugin[Any]) -> str | None:
    ids = config.device.ids
    if ids is None:
        return None
    parallel = config.parallel
    workers = parallel.tensor_parallel_size * parallel.pipeline_parallel_size * parallel.data_parallel_size
    if executor.capabilities.maps_devices:
        return f"executor '{executor.name}' gives each worker its devices itself: leave [device] ids out."
    if len(set(ids)) != len(ids) or any(i < 0 for i in ids):
        return f"[device] ids = {list(ids)} must be different numbers from 0 on."
    if len(ids) != workers:
        return f"[device] ids = {list(ids)} names {len(ids)}, and [parallel] asks for {workers}: one for each worker."
    return None


def _order(
    config: EngineConfig, executor: ExecutorPlugin[Any], scheduler: SchedulerPlugin[Any], executors: Executors
) -> str | None:
    if not executor.capabilities.every_rank_schedules or scheduler.capabilities.deterministic_order:
        return None
    other = _another(config, executor, executors)
    way_out = f"executor '{other}'" if other else "another executor"
    return (
        f"scheduler '{scheduler.name}' declares no deterministic order, and executor '{executor.name}' runs one "
        f"scheduler per rank: choose another scheduler or {way_out}."
    )


def _wishes(config: EngineConfig, runner: RunnerPlugin[Any]) -> str | None:
    if config.engine.batch_invariant and "batch_invariant" not in runner.capabilities.features:
        return (
            f"[engine] batch_invariant is on, and runner '{runner.name}' does not compute the same bits whatever the "
            f"batch: choose a runner with the feature batch_invariant, or turn it off."
        )
    asked, most = config.speculation.num_tokens, runner.capabilities.max_draft_tokens
    if asked > most:
        can = f"verifies at most {most} proposals of a request in a step" if most else "verifies no proposals"
        way_out = f"lower max_tokens to {most}" if most else 'set use = "off"'
        return f"[speculation] max_tokens is {asked}, and runner '{runner.name}' {can}: {way_out}, or choose another."
    return None


def _another(config: EngineConfig, executor: ExecutorPlugin[Any], executors: Executors) -> str | None:
    """Of the other executors for as many workers, the one that asks least of whoever starts the engine."""
    workers = config.parallel.tensor_parallel_size * config.parallel.pipeline_parallel_size
    others = [
        (can.every_rank_schedules, can.attaches, can.multi_node, other.name)
        for other in executors()
        if other.name != executor.name
        and ((can := other.capabilities).max_world_size or workers) >= workers
        and not (can.every_rank_schedules and executor.capabilities.every_rank_schedules)  # for which it is refused
    ]
    return min(others)[-1] if others else None
