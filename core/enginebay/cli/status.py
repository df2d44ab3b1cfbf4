"""``enginebay status``: how a running engine stands, once or until it ends, and how its workers have stood."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from enginebay.cli._connect import ask, keys_option, remote
from enginebay.cli._grouped import GroupedCommand
from enginebay.cli._signals import interrupts
from enginebay.cli._style import columns, printable
from enginebay.cli._workers import changes, clock_time, history_line, rows
from enginebay.errors import ConfigError

if TYPE_CHECKING:
    from enginebay.engine.remote.remote import RemoteClient

_BETWEEN_LOOKS = 1.0
_HOME_AND_CLEAR = "\x1b[H\x1b[J"
_MOST = 100_000
_DAMAGED = (
    "the file is damaged. An engine that writes to it moves it aside within ten seconds and begins a new one, as does "
    "the next that starts; sqlite3's .recover may read what is in it"
)


@click.command("status", cls=GroupedCommand)
@click.argument("address", required=False)
@click.option("--watch", is_flag=True, help="Look every second, until Ctrl-C; without a terminal, a line per change.")
@click.option(
    "--history",
    type=click.IntRange(1, _MOST),
    is_flag=False,
    flag_value=50,
    default=None,
    metavar="[COUNT]",
    help="The last changes of workers that the sqlite sink has kept, 50 without COUNT; no engine is asked.",
)
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="With --history: another file of the sink's.",
)
@keys_option
def command(address: str | None, keys: Path | None, watch: bool, history: int | None, file: Path | None) -> None:
    """Say how the engine at ADDRESS stands; without it, the only one of this user.

    "health" is judged by what comes of the engine: its workers are ready, and steps end.

    Exit codes: 0, also when Ctrl-C ended --watch, 2 when several engines run or the keys are refused, 70 when none
    answers (to these keys).

    \b
    Examples:
      enginebay status
      enginebay status --watch
      enginebay status --history
      enginebay status tcp://127.0.0.1:5555 --keys engine.keys.client
    """
    if history is not None:
        _show_history(history, file)
        return
    with remote(address, keys) as client:
        if watch:
            interrupts.quiet()  # it ends the looking, and not the engine
            try:
                _watch(client)
            except KeyboardInterrupt:
                return
        else:
            click.echo(_page(client))


def _page(client: RemoteClient) -> str:
    from enginebay.messages import ReadStatus

    facts = [("pid", str(client.welcome.pid)), ("model", client.welcome.model.name)]
    said = [row for row in rows(ask(client, ReadStatus())) if row[0] != "model"]
    return printable("\n".join(columns([*facts, *said])))


def _watch(client: RemoteClient) -> None:
    """Until the engine has gone, which is raised, or Ctrl-C."""
    from enginebay.messages import ReadStatus

    known: dict[str, str] = {}
    while True:
        if sys.stdout.isatty():
            click.echo(_HOME_AND_CLEAR + _page(client))
        else:
            for name, said in changes(known, ask(client, ReadStatus())).items():
                known[name] = said
                click.echo(printable(f"{clock_time(time.time())}  {name}  {said}"))
            sys.stdout.flush()
        time.sleep(_BETWEEN_LOOKS)


def _show_history(count: int, file: Path | None) -> None:
    import sqlite3

    from enginebay.status.sinks.sqlite import SqliteSinkOptions, is_damage, read_history

    path = file or SqliteSinkOptions().file
    try:
        found = read_history(path, count)
    except sqlite3.Error as error:
        hint = f"; {_DAMAGED}" if is_damage(error) else ""
        raise ConfigError(f"the history in {path} cannot be read: {error}{hint}") from None
    if not found:
        raise ConfigError(f"{path} holds no history: the sqlite sink, see [status] in the config, has written none")
    click.echo(printable("\n".join(columns([history_line(row) for row in found]))))
