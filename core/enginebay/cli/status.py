"""``enginebay status``: how a running engine stands."""

from __future__ import annotations

from pathlib import Path

import click

from enginebay.cli._connect import ask, keys_option, remote
from enginebay.cli._grouped import GroupedCommand
from enginebay.cli._style import columns, printable


@click.command("status", cls=GroupedCommand)
@click.argument("address", required=False)
@keys_option
def command(address: str | None, keys: Path | None) -> None:
    """Say how the engine at ADDRESS stands; without it, the only one of this user.

    Exit codes: 0, 2 when several engines run or the keys are refused, 70 when none answers (to these keys).

    \b
    Examples:
      enginebay status
      enginebay status tcp://127.0.0.1:5555 --keys engine.keys.client
    """
    from enginebay.messages import ReadStatus

    with remote(address, keys) as client:
        facts = {"pid": str(client.welcome.pid), "model": client.welcome.model.name}
        facts |= ask(client, ReadStatus()).facts
    click.echo(printable("\n".join(columns(list(facts.items())))))
