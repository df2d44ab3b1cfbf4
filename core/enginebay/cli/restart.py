"""``enginebay restart``: start a running engine's workers anew, one group after the other."""

from __future__ import annotations

from pathlib import Path

import click

from enginebay.cli._connect import ask_change, keys_option, remote
from enginebay.cli._grouped import GroupedCommand


@click.command("restart", cls=GroupedCommand)
@click.argument("address", required=False)
@click.option("--rolling", is_flag=True, help="One group after the other, which is the only way: it may be left out.")
@keys_option
def command(address: str | None, rolling: bool, keys: Path | None) -> None:
    """Restart the workers of the engine at ADDRESS; without it, the only one of this user.

    While a group's workers start, its requests wait, and new ones go to the other groups. Nothing is lost, and no
    restart is counted.

    Exit codes: 0, 1 when it cannot be now (ask again later), 2 when it is refused, 4 when the workers do not start
    again, 70 when no engine answers.

    \b
    Examples:
      enginebay restart --rolling
    """
    from enginebay.messages import RestartWorkers

    with remote(address, keys) as client:
        ask_change(client, RestartWorkers(), slow="starting the workers anew: this takes as long as a start")
    click.echo("the workers were started anew", err=True)
