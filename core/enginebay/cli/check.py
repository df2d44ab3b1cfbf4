"""``enginebay check``: what a config comes to on this machine, and why, without starting it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from enginebay.cli._options import config_options, resolve
from enginebay.cli._style import columns, printable
from enginebay.engine.plan import Plan, plan
from enginebay.interfaces import Kind
from enginebay.plugins import PluginHost


@click.command("check")
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(config: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Say what a config would start, where each value comes from, and what would be loaded from where.

    Everything is validated (sections, plugins, their options, the model's folder, whether the parts fit each other),
    and nothing is started; a GGUF file is converted into the cache, as it would be at the start. Exit code 0 when an
    engine could be assembled, 2 with the reason when not.

    \b
    Examples:
      enginebay check
      enginebay check --config engine.toml
      enginebay check --set scheduler.max_num_seqs=8 --json
    """
    host = PluginHost()
    planned = plan(resolve(config, sets), host)
    loaded = _loaded(planned, host)
    if as_json:
        values = [{"name": i.name, "value": i.value, "why": i.why} for i in planned.in_force]
        click.echo(json.dumps({"in_force": values, "loaded": loaded}, indent=2))
        return
    rows = columns([(i.name, i.value, i.why) for i in planned.in_force])
    files = columns([(f"{one['kind']} {one['name']}", one["package"], one["file"]) for one in loaded])
    click.echo(printable("\n".join(["in force", *rows, "", "loaded from", *files])))


def _loaded(planned: Plan, host: PluginHost) -> list[dict[str, str]]:
    asked = [
        (Kind.EXECUTOR, planned.executor.identity),
        (Kind.RUNNER, planned.runner.identity),
        (Kind.SCHEDULER, planned.scheduler.identity),
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
