"""From what is asked for to a plan: the config in force with other names in it, checked as a start checks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from msgspec import structs

from enginebay.config import Resolved, load
from enginebay.engine.startup.plan import Plan, plan
from enginebay.errors import InvalidRequest
from enginebay.messages import Scale, Swap
from enginebay.plugins import PluginHost

__all__ = ["KINDS", "needs_workers", "wanted"]

KINDS: Final = ("scheduler", "runner", "executor")
"""What can be exchanged, by the names of its sections in a config."""


def wanted(command: Swap | Scale, now: Plan, host: PluginHost) -> Plan:
    """The plan that is asked for: in all else it is that of ``now``, whose model, runner and sizes are kept.

    Raises ``InvalidRequest`` for what is no swap, and whatever ``plan`` raises for what cannot be started.
    """
    tables = _tables(now)
    if isinstance(command, Scale):
        sets: tuple[str, ...] = ()
        chosen = _scale(command, tables)
    else:
        sets = command.sets
        chosen = _swap(command, tables, now)
    resolved = load(tables, sets=sets, environ={})
    origins = {**now.origins, **{key: "swap" for key, origin in resolved.origins.items() if origin == "--set"}}
    origins |= dict.fromkeys(chosen, "swap")
    then = plan(Resolved(config=resolved.config, origins=origins), host, model=now.model, again=True)
    place = {name: getattr(now.world, name) for name in ("data_parallel_index", "data_parallel_rank_local")}
    return replace(then, world=structs.replace(then.world, **place))


def needs_workers(now: Plan, then: Plan, *, windows: bool) -> bool:
    """Whether workers of the one plan are none of the other: any of what they were started with differs.

    ``windows``: the KV cache has groups with one, whose size depends on how many steps are in flight at most.
    """
    return _of_workers(now) != _of_workers(then) or (windows and then.depth > now.depth)


def _of_workers(one: Plan) -> tuple[object, ...]:
    return (
        one.executor.identity,
        one.runner.identity,
        one.world,
        one.limits,
        one.constraints,
        one.block_size,
        one.dtype,
        one.cache_dtype,
        one.prefix_caching,
    )


def _tables(now: Plan) -> dict[str, Any]:
    """The config in force, in which what was chosen for "auto" is named."""
    tables: dict[str, Any] = now.config.model_dump(mode="json", exclude_unset=True)
    for kind, loaded in _loaded(now).items():
        tables[kind] = {**tables.get(kind, {}), "use": loaded.plugin.name}
    return tables


def _loaded(now: Plan) -> Mapping[str, Any]:
    return {"scheduler": now.scheduler, "runner": now.runner, "executor": now.executor}


def _swap(command: Swap, tables: dict[str, Any], now: Plan) -> list[str]:
    """Put the names in; options go with the plugin that they are of. Returns the keys."""
    chosen = []
    for kind in KINDS:
        name: str = getattr(command, kind)
        if not name:
            continue
        chosen.append(f"{kind}.use")
        if name != _loaded(now)[kind].plugin.name:
            tables[kind] = {key: value for key, value in tables[kind].items() if key != "options"} | {"use": name}
    strange = [one for one in command.sets if one.partition(".")[0].strip() not in KINDS]
    if strange:
        raise InvalidRequest(
            f"swap changes [scheduler], [runner] and [executor], and not {strange[0]!r:.80}: start the engine anew",
            param="sets",
        )
    if named := [one for one in command.sets if one.partition("=")[0].strip().endswith(".use")]:
        kind, _, name = named[0].partition(".use")
        raise InvalidRequest(f"{named[0]!r:.80} is no option: swap {kind:.40}{name:.40}", param="sets")
    if not chosen and not command.sets:
        raise InvalidRequest("nothing is named that is to be exchanged: scheduler, runner or executor", param="swap")
    return chosen


def _scale(command: Scale, tables: dict[str, Any]) -> list[str]:
    """Put the sizes in. Returns the keys."""
    chosen = []
    for key in ("tensor_parallel_size", "pipeline_parallel_size"):
        size: int | None = getattr(command, key)
        if size is None:
            continue
        chosen.append(f"parallel.{key}")
        tables["parallel"] = {**tables.get("parallel", {}), key: size}
    if not chosen:
        raise InvalidRequest("no size is given: tensor_parallel_size, pipeline_parallel_size", param="scale")
    return chosen
