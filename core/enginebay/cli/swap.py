"""``enginebay swap``: put other plugins in the place of those that run, while requests wait."""

from __future__ import annotations

from pathlib import Path

import click

from enginebay.cli._connect import ask_change, keys_option, remote
from enginebay.cli._grouped import GroupedCommand
from enginebay.cli._style import columns, printable

KINDS = ("scheduler", "runner", "executor")
STARTING = "starting other workers: this takes as long as a start"


@click.command("swap", cls=GroupedCommand)
@click.argument("parts", nargs=-1, metavar="[KIND=NAME]... [ADDRESS]")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of [scheduler], [runner] or [executor], as in runner.options.KEY=VALUE. Repeatable.",
)
@click.option("--exclusive", is_flag=True, help="Stop the old workers before the new ones are started.")
@click.option("--address", metavar="ADDRESS", help="ADDRESS as an option.")
@keys_option
def command(
    parts: tuple[str, ...], sets: tuple[str, ...], exclusive: bool, address: str | None, keys: Path | None
) -> None:
    """Exchange plugins of the engine at ADDRESS; without it, the only one of this user. Its requests wait meanwhile,
    and lose nothing.

    KIND is scheduler, runner or executor. Printed is what is in force differently from before. What does not fit, or
    does not start, is refused, and the old plugin goes on.

    Exit codes: 0, 1 when it cannot be now (ask again later), 2 when it is refused, 3 when it does not start, 70 when no
    engine answers.

    \b
    Examples:
      enginebay swap scheduler=priority
      enginebay swap runner=v1 --exclusive
      enginebay swap scheduler=fcfs tcp://127.0.0.1:5555 --keys engine.keys.client
      enginebay swap scheduler=fair --set scheduler.options.weights='{gold = 2.0}'
    """
    from enginebay.messages import Swap

    named = {}
    for part in parts:
        kind, equals, name = part.partition("=")
        if "://" in kind:
            if address is not None:
                raise click.UsageError(f"there is one ADDRESS, and not {address!r:.80} and {part!r:.80}")
            address = part
        elif kind not in KINDS or not equals or not name:
            raise click.UsageError(f"{part!r:.80} is none of {', '.join(f'{one}=NAME' for one in KINDS)}")
        else:
            named[kind] = name
    if not named and not sets:
        raise click.UsageError(f"name what to change: {', '.join(f'{one}=NAME' for one in KINDS)}, --set KEY=VALUE")
    others = {"runner", "executor"} & {*named, *(key.partition(".")[0] for key in sets)}
    with remote(address, keys) as client:
        slow = STARTING if others else ""
        show(ask_change(client, Swap(**named, sets=sets, exclusive=exclusive), slow=slow).facts)


def show(changed: dict[str, str]) -> None:
    """Print what is in force differently from before."""
    if not changed:
        click.echo("nothing has changed: that is in force already", err=True)
    for line in columns(list(changed.items())):
        click.echo(printable(line))
