"""``enginebay check``: what a config comes to on this machine, and why, without starting it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from enginebay.cli._options import config_options, resolve
from enginebay.cli._style import columns, printable
from enginebay.engine.startup.plan import InForce, Plan, plan
from enginebay.interfaces import Kind
from enginebay.plugins import PluginHost


@click.command("check")
@config_options
@click.option("--probe", is_flag=True, help="Start it as well, in a process of its own, and say what is in force then.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(config: Path | None, sets: tuple[str, ...], probe: bool, as_json: bool) -> None:
    """Say what a config would start, where each value comes from, and what would be loaded from where.

    Everything is validated (sections, plugins, their options, the model's folder, whether the parts fit each other),
    and nothing is started; a GGUF file is converted into the cache, as it would be at the start.

    With --probe the engine is also brought up, in another process that ends again: the model is loaded, checked and
    warmed up, and what only workers know is in the table too (device, attention, size of the KV cache, seconds).
    Each phase may take as long as [deadlines] says.

    Exit codes: 0 when an engine could be assembled (with --probe: was), 2 with the reason when the config or the
    model is refused, 3 when the start failed.

    \b
    Examples:
      enginebay check
      enginebay check --config engine.toml --probe
      enginebay check --set scheduler.max_num_seqs=8 --json
    """
    host = PluginHost()
    resolved = resolve(config, sets)
    planned = plan(resolved, host)
    loaded = _loaded(planned, host)
    in_force = {item.name: item for item in (*planned.in_force, *_history(planned))}
    told: dict[str, Any] = {}
    if probe:
        from enginebay.cli._probe import probe as bring_up

        told = bring_up(resolved)
        in_force |= {item.name: item for item in _told(told)}
    if as_json:
        values = [{"name": i.name, "value": i.value, "why": i.why} for i in in_force.values()]
        click.echo(json.dumps({"in_force": values, "loaded": loaded} | ({"probe": told} if probe else {}), indent=2))
        return
    parts = ["in force", *columns([(i.name, i.value, i.why) for i in in_force.values()])]
    if probe:
        parts += ["", "seconds", *columns([(name, f"{took:.2f}") for name, took in told["seconds"].items()])]
    files = columns([(f"{one['kind']} {one['name']}", one["package"], one["file"]) for one in loaded])
    click.echo(printable("\n".join([*parts, "", "loaded from", *files])))


def _history(planned: Plan) -> Iterable[InForce]:
    """The row of the sqlite sink with the file that it takes where the config names none, for that of the plan."""
    from enginebay.status.sinks.sqlite import SqliteSinkOptions

    rows = {item.name: item for item in planned.in_force}
    for one in planned.status_sinks:
        if isinstance(one.options, SqliteSinkOptions) and one.options.path is None:
            row = rows[f"status sink {one.plugin.name}"]
            yield InForce(row.name, row.value.replace("path = unset", f"path = {one.options.file}", 1), row.why)


def _told(told: dict[str, Any]) -> Iterable[InForce]:
    """What a probe brought back, as rows; they stand for the plan's of the same name."""
    workers = told["workers"]
    groups = [group for worker in workers for group in worker["kv_cache_groups"]]
    block = sum(group["bytes_per_block"] for group in workers[0]["kv_cache_groups"])
    yield InForce("device", _each([worker["device"] for worker in workers]), "chosen by the worker")
    yield from (InForce(name, value, told["runner"]) for name, value in told["in_force"].items())
    weights = _each([_size(worker["weight_bytes"]) for worker in workers])
    yield InForce("weights", weights, "what load_model added to the memory")
    yield InForce("cache size", _size(told["kv_blocks"] * block), told["kv_blocks_why"])
    yield InForce("kv_blocks", str(told["kv_blocks"]), f"{_size(block)} each, {groups[0]['block_size']} tokens")
    yield InForce("longest request", f"{told['longest_request']} tokens", _apart(told["longest_request_why"]))


def _apart(why: str) -> str:
    """The reason alone, where the number stands beside it already."""
    return why.partition(" tokens: ")[2] if why.startswith("the longest request is ") else why


def _each(values: list[str]) -> str:
    """One value for all ranks, or each with its rank."""
    if len(set(values)) == 1:
        return values[0]
    return ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count} bytes"


def _loaded(planned: Plan, host: PluginHost) -> list[dict[str, str]]:
    asked = [
        (Kind.EXECUTOR, planned.executor.identity),
        (Kind.RUNNER, planned.runner.identity),
        (Kind.SCHEDULER, planned.scheduler.identity),
        *((Kind.STATUS_SINK, one.identity) for one in planned.status_sinks),
        *((Kind.EXTENSION, one.identity) for one in planned.extensions),
    ]
    return [
        {
            "kind": identity.kind,
            "name": identity.name,
            "package": f"{identity.package} {identity.version}",
            "file": str(getattr(sys.modules.get(host.find(kind, identity.name).module), "__file__", "?")),
        }
        for kind, identity in asked
    ]
