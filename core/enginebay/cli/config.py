"""``enginebay config``: about the config file itself."""

from __future__ import annotations

import json

import click

from enginebay.cli._style import printable
from enginebay.config import from_vllm
from enginebay.interfaces import Kind
from enginebay.plugins import PluginHost, config_schema


@click.group("config")
def command() -> None:
    """Tools for the config file.

    Exit codes: 0, and 2 for a command line that cannot be translated.

    \b
    Examples:
      enginebay config schema > engine.schema.json
      enginebay config from-vllm -- vllm serve /models/mine --max-model-len 4096 > engine.toml
    """


@command.command("schema", short_help="Print the JSON schema of engine.toml.")
def schema() -> None:
    """Print the JSON schema of engine.toml, with the options of every installed plugin.

    Editors use it to complete and check keys. An installed plugin that cannot be loaded is left out, with a warning
    on stderr.

    Exit codes: 0, also with such a warning.

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


@command.command("from-vllm", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="-- FLAGS", required=True)
def translate(flags: tuple[str, ...]) -> None:
    """Print the engine.toml that a vLLM command line comes to.

    FLAGS are those of `vllm serve`, which may stand in front of them, as may `python -m
    vllm.entrypoints.openai.api_server`. Each key has the flag that it comes from beside it; flags without a key here
    are listed at the end, with the reason and what to do instead.

    Exit codes: 0 when a config was printed, 2 when a flag is unknown or its value wrong; all of them are named, and
    nothing is printed then.

    \b
    Examples:
      enginebay config from-vllm -- vllm serve /models/mine -tp 2 --max-model-len 4k > engine.toml
      enginebay config from-vllm -- --model /models/mine --gpu-memory-utilization=0.8 --no-enable-prefix-caching
      enginebay check --config engine.toml           what it comes to on this machine
    """
    host = PluginHost()
    installed = {kind.noun: {one.name for one in host.installed(kind)} for kind in (Kind.EXECUTOR, Kind.SCHEDULER)}
    translation = from_vllm(flags, installed=installed)
    click.echo(printable(translation.toml), nl=False)
    for one in translation.missing:
        click.echo(f"warning: {printable(one)} is not installed: what is, says enginebay plugins", err=True)
    if translation.left_out:
        names = ", ".join(translation.left_out)
        click.echo(f"left out, for the reasons at the end of the file: {printable(names)}", err=True)
