"""``enginebay plugins``: what is installed, by kind, from package metadata alone."""

from __future__ import annotations

import json

import click

from enginebay.cli._style import columns, printable
from enginebay.interfaces import Kind
from enginebay.plugins import Installed, PluginHost


@click.command("plugins")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
def command(as_json: bool) -> None:
    """Say what can be named in engine.toml, and which package offers it.

    Reads package metadata only; no plugin is imported.

    Exit codes: 0, also when two packages offer the same name, which is told on stderr.

    \b
    Examples:
      enginebay plugins
      enginebay describe runner v1
    """
    host = PluginHost()
    if as_json:
        click.echo(json.dumps([_row(i) for i in host.installed()], indent=2))
    else:
        click.echo(printable("\n\n".join(_table(kind, host.installed(kind)) for kind in Kind if _shown(host, kind))))
    for group in host.clashes():
        first = group[0]
        packages = " and ".join(i.origin for i in group)
        warning = (
            f"warning: {first.kind.noun} '{first.name}' is offered by {packages}; asking for it is an error until only "
            f"one of them is installed"
        )
        click.echo(printable(warning), err=True)


def _shown(host: PluginHost, kind: Kind) -> bool:
    """The three parts of an engine always, also when none is installed; the other kinds when there is something."""
    return kind in (Kind.EXECUTOR, Kind.RUNNER, Kind.SCHEDULER) or bool(host.installed(kind))


def _table(kind: Kind, plugins: tuple[Installed, ...]) -> str:
    title = kind.value.replace("_", " ")
    if not plugins:
        return f"{title}\n  none"
    rows = columns([(i.name, i.origin, i.module) for i in plugins])
    return "\n".join([title, *rows])


def _row(one: Installed) -> dict[str, str]:
    return {
        "kind": one.kind.noun,
        "name": one.name,
        "package": one.package,
        "version": one.version,
        "module": one.module,
    }
