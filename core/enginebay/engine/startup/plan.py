"""What a config comes to on this machine: plugins, model, world and limits, each with the reason; nothing is started.

``check`` prints the plan, and the engine is assembled from it. What does not fit is refused here. No torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from enginebay.config import EngineConfig, Resolved
from enginebay.engine.startup._choose import choose_runner, foreseen
from enginebay.engine.startup._fit import check_executor, check_fit, check_passes, plan_workers
from enginebay.engine.startup._launched import own_rank
from enginebay.engine.startup._overlap import can_overlap, settle_overlap
from enginebay.engine.startup._settle import InForce, Settled, settle
from enginebay.engine.startup.named import check_named
from enginebay.interfaces import (
    BatchConstraints,
    ExecutorPlugin,
    ExtensionPlugin,
    RunnerPlugin,
    SchedulerLimits,
    SchedulerPlugin,
    StatusSinkPlugin,
    WorkerExtensionPlugin,
)
from enginebay.messages import ModelInfo, WorldPlan
from enginebay.plugins import Loaded, PluginHost

__all__ = ["InForce", "Plan", "plan"]

_BESIDE: Final = ("engine", "server", "telemetry", "deadlines")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An engine that could be assembled: every value is the one in force, and ``in_force`` tells where it is from.

    ``block_size`` and ``max_model_len`` are in tokens; ``dtype`` and ``cache_dtype`` are names such as "bfloat16";
    ``depth`` is how many steps may be in flight. ``constraints`` are the runner's, with the proposals in force;
    ``origins`` are those of the config.
    """

    config: EngineConfig
    model: ModelInfo
    executor: Loaded[ExecutorPlugin[Any]]
    runner: Loaded[RunnerPlugin[Any]]
    scheduler: Loaded[SchedulerPlugin[Any]]
    world: WorldPlan
    limits: SchedulerLimits
    constraints: BatchConstraints
    block_size: int
    max_model_len: int
    dtype: str
    cache_dtype: str
    prefix_caching: bool
    in_force: tuple[InForce, ...]
    depth: int = 1
    extensions: tuple[Loaded[ExtensionPlugin[Any]], ...] = ()
    worker_extensions: tuple[Loaded[WorkerExtensionPlugin[Any]], ...] = ()
    status_sinks: tuple[Loaded[StatusSinkPlugin[Any]], ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)


def plan(resolved: Resolved, host: PluginHost, *, model: ModelInfo | None = None, again: bool = False) -> Plan:
    """Load what the config names, check that it fits, and settle every value.

    ``model`` is read from ``[model] path`` unless it is given. Plugins' ``enginebay_configure`` hooks are called
    here, once, after everything is loaded, but not ``again``, for a plan that is to take another's place. Raises
    ``ConfigError`` (``PluginError``, ``CapabilityError``, ``ModelError``) with the reason and a way out; of names that
    are at fault all at once.
    """
    config = resolved.config
    model = check_named(resolved, host, model)
    executor = host.load_executor(config.executor.use, config.executor.options, resolved.source("executor.options"))
    scheduler = host.load_scheduler(
        config.scheduler.use, config.scheduler.options, resolved.source("scheduler.options")
    )
    check_executor(config, executor.plugin, host.executor_plugins)
    world = plan_workers(config.parallel, own_rank(config, executor.plugin))
    runner, runner_why = choose_runner(resolved, host, model, executor.plugin)
    extensions = host.load_extensions(config.extensions, resolved.source("extensions"))
    in_workers = host.load_worker_extensions(
        config.worker.extensions, config.worker.options, resolved.source("worker.options")
    )
    sinks = host.load_status_sinks(config.status.sinks, config.status.options, resolved.source("status"))
    check_fit(
        config,
        executor=executor.plugin,
        runner=runner.plugin,
        scheduler=scheduler.plugin,
        model=model,
        executors=host.executor_plugins,
    )
    declared = runner.plugin.capabilities.constraints
    settled = settle(resolved, model, declared, runner.name_and_version)
    drawn = max(declared.max_tokens_per_step, 1 + config.speculation.num_tokens)
    constraints = msgspec.structs.replace(declared, max_tokens_per_step=drawn)
    depth, overlap = settle_overlap(
        resolved,
        executor.plugin,
        scheduler=scheduler.plugin.name,
        safe=lambda: can_overlap(scheduler, settled, constraints),
    )
    if not again:
        host.hooks.configure(config)
    parts = _parts_in_force(resolved, host, model, executor, scheduler, runner, runner_why, extensions, in_workers)
    return Plan(
        config=config,
        model=model,
        executor=executor,
        runner=runner,
        scheduler=scheduler,
        world=world,
        limits=settled.limits,
        constraints=constraints,
        block_size=settled.block_size,
        max_model_len=settled.limits.max_model_len,
        dtype=settled.dtype,
        cache_dtype=settled.cache_dtype,
        prefix_caching=settled.prefix_caching,
        in_force=(
            *parts,
            *_settled_in_force(resolved, settled, overlap, runner),
            *_recovery(resolved, executor),
            *_sinks(resolved, sinks),
            *_beside(resolved),
        ),
        depth=depth,
        extensions=extensions,
        worker_extensions=in_workers,
        status_sinks=sinks,
        origins=resolved.origins,
    )


def _parts_in_force(
    resolved: Resolved,
    host: PluginHost,
    model: ModelInfo,
    executor: Loaded[ExecutorPlugin[Any]],
    scheduler: Loaded[SchedulerPlugin[Any]],
    runner: Loaded[RunnerPlugin[Any]],
    runner_why: str,
    extensions: tuple[Loaded[ExtensionPlugin[Any]], ...],
    in_workers: tuple[Loaded[WorkerExtensionPlugin[Any]], ...],
) -> tuple[InForce, ...]:
    config, world = resolved.config, plan_workers(resolved.config.parallel)
    unset = "the imported model; [model] path is not set"
    device = "settled when the worker starts: an accelerator the runner supports, else cpu"
    parts = [
        InForce("model", model.path, unset if config.model.path is None else resolved.origin("model.path")),
        InForce("executor", config.executor.use, f"{executor.origin}; {resolved.origin('executor.use')}"),
        InForce("runner", runner.plugin.name, f"{runner.origin}; {runner_why}"),
        InForce("scheduler", config.scheduler.use, f"{scheduler.origin}; {resolved.origin('scheduler.use')}"),
        *_scheduler_options(resolved, scheduler),
        *(
            InForce(f"extension {one.plugin.name}", _compact(one), f"{one.origin}; {resolved.source('extensions')}")
            for one in extensions
        ),
        *(InForce(name, value, why) for one in extensions for name, (value, why) in foreseen(one).items()),
        *(InForce(f"worker extension {one.plugin.name}", _compact(one), one.origin) for one in in_workers),
    ]
    if passes := host.graph_passes([runner, *in_workers]):
        check_passes(passes, runner.plugin)
        shown = ", ".join(one.name for one in passes)
        parts.append(InForce("graph passes", shown, "in this order; enginebay graph shows what each does"))
    wrappers = host.hooks.listeners("enginebay_wrap_executor")
    if wrappers:
        parts.append(InForce("executor wrapped by", ", ".join(wrappers), "innermost first"))
    if model.ignored_generation:
        ignored = f"not applied: {', '.join(model.ignored_generation)}"
        parts.append(InForce("generation_config", ignored, "requests carry their own sampling"))
    if config.engine.batch_invariant:
        why = f"{resolved.origin('engine.batch_invariant')}; how is found when the worker loads the model"
        parts.append(InForce("batch_invariant", "on", why))
    parts += [
        InForce("workers", str(len(world.ranks)), _sizes_from(resolved)),
        *_groups(resolved, world),
        InForce(
            "device",
            config.device.kind,
            device if config.device.kind == "auto" else resolved.origin("device.kind"),
        ),
    ]
    return tuple(parts)


def _settled_in_force(
    resolved: Resolved, settled: Settled, overlap: InForce, loaded: Loaded[RunnerPlugin[Any]]
) -> tuple[InForce, ...]:
    runner, can = loaded.plugin, loaded.plugin.capabilities
    captures, attention = can.captures_graph, can.attention
    speculation = resolved.config.speculation
    proposed = f"{speculation.use}, at most {speculation.max_tokens} tokens" if speculation.num_tokens else "off"
    return (
        *settled.in_force,
        overlap,
        InForce("speculation", proposed, resolved.origin("speculation.use")),
        InForce(
            "execution",
            "captured graph" if captures else "eager",
            f"runner '{runner.name}' {'captures graphs' if captures else 'captures no graph'}",
        ),
        InForce(
            "attention",
            attention or "auto",
            f"runner '{runner.name}'" if attention else "settled when the worker has loaded the model",
        ),
        *(InForce(name, value, why) for name, (value, why) in foreseen(loaded).items()),
    )


def _recovery(resolved: Resolved, executor: Loaded[ExecutorPlugin[Any]]) -> Iterator[InForce]:
    if not executor.plugin.capabilities.restartable:
        yield InForce("recovery", "none", f"executor '{executor.plugin.name}' does not start lost workers again")
        return
    for name, value in resolved.config.recovery.model_dump().items():
        yield InForce(f"recovery {name}", f"{value:g}", resolved.origin(f"recovery.{name}"))


def _sinks(resolved: Resolved, sinks: tuple[Loaded[StatusSinkPlugin[Any]], ...]) -> Iterator[InForce]:
    if not sinks:
        yield InForce("status sinks", "none", resolved.origin("status.sinks"))
    for one in sinks:
        why = f"{one.origin}; {resolved.origin('status.sinks')}"
        yield InForce(f"status sink {one.plugin.name}", _compact(one), why)


def _beside(resolved: Resolved) -> Iterator[InForce]:
    """What was set of the sections in which nothing is left to be settled."""
    tables = resolved.config.model_dump(mode="json")
    for key, origin in resolved.origins.items():
        section, _, name = key.partition(".")
        if section in _BESIDE and name in tables[section] and key != "engine.batch_invariant":
            shown = re.sub(r"//[^/@]*@", "//…@", _written(tables[section][name]))  # an endpoint's password is not told
            yield InForce(f"{section} {name}", shown, origin)


def _groups(resolved: Resolved, world: WorldPlan) -> tuple[InForce, ...]:
    if world.data_parallel_size == 1:
        return ()
    each = f"copies of the model, of {len(world.ranks)} worker{'' if len(world.ranks) == 1 else 's'} each"
    return (
        InForce("groups", str(world.data_parallel_size), f"{each}; {resolved.origin('parallel.data_parallel_size')}"),
    )


def _sizes_from(resolved: Resolved) -> str:
    keys = ("parallel.tensor_parallel_size", "parallel.pipeline_parallel_size")
    return " and ".join(dict.fromkeys(resolved.origins[k] for k in keys if k in resolved.origins)) or "default"


def _scheduler_options(resolved: Resolved, scheduler: Loaded[SchedulerPlugin[Any]]) -> Iterator[InForce]:
    for name, value in scheduler.options.model_dump(mode="json").items():
        yield InForce(f"scheduler {name}", _written(value), resolved.origin(f"scheduler.options.{name}"))


def _compact(one: Loaded[Any]) -> str:
    options: Mapping[str, Any] = one.options.model_dump(mode="json")
    return ", ".join(f"{k} = {_written(v)}" for k, v in options.items()) or "loaded"


def _written(value: object) -> str:
    """A value about as a config has it, for people."""
    match value:
        case None:
            return "unset"
        case bool():
            return str(value).lower()
        case Mapping():
            inside = ", ".join(f"{key} = {_within(one)}" for key, one in value.items() if one is not None)
            return f"{{{inside}}}"
        case list() | tuple():
            return f"[{', '.join(_within(one) for one in value)}]"
        case _:
            return str(value)


def _within(value: object) -> str:
    """The same inside of a list or a table, where text is quoted."""
    return f'"{value}"' if isinstance(value, str) else _written(value)
