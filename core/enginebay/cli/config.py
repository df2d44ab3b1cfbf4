"""``enginebay config``: about the config file itself."""

from __future__ import annotations

import json

import click

from enginebay.cli._style import printable
from enginebay.plugins import PluginHost, config_schema


@click.group("config")
def command() -> None:
    """Tools for the config file."""


@command.command("schema")
def schema() -> None:
    """Print the JSON schema of engine.toml, with the options of every installed plugin.

    Editors use it to complete and check keys. An installed plugin that cannot be loaded is left out, with a warning
    on stderr.

    \b
    Example:
      enginebay config schema > engine.schema.json
      # first line of engine.toml, for editors with the taplo language server:
      #:schema ./engine.schema.json
    """
    described, warnings = config_schema(PluginHost())
    click.echo(json.dumps(described, indent=2))
    for warning in warnings:
        click.echo(f"warning: left out: {printable(warning)}", err=True)
