"""``enginebay stop``: end a running engine."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from enginebay.cli._connect import ask, keys_option, remote
from enginebay.cli._grouped import GroupedCommand

if TYPE_CHECKING:
    from enginebay.engine.remote.remote import RemoteClient

_MOST_SECONDS = 60.0
_LOOK_SECONDS = 0.05


@click.command("stop", cls=GroupedCommand)
@click.argument("address", required=False)
@click.option("--drain", is_flag=True, help="Let the running requests end first, within [deadlines] drain.")
@keys_option
@click.pass_context
def command(ctx: click.Context, address: str | None, drain: bool, keys: Path | None) -> None:
    """Stop the engine at ADDRESS; without it, the only one of this user. Its unfinished requests are aborted.

    Exit codes: 0, 1 when requests were unfinished after --drain, 2 when several engines run or the keys are refused,
    70 when none answers (to these keys).

    \b
    Examples:
      enginebay stop
      enginebay stop --drain
    """
    from enginebay.errors import EngineDead
    from enginebay.messages import Drain, StopEngine

    unfinished = 0
    with remote(address, keys) as client, _process(client) as process:
        if drain:
            unfinished = int(ask(client, Drain()).facts["unfinished"])
        with contextlib.suppress(EngineDead):  # that it has ended may be heard sooner than that it is about to
            ask(client, StopEngine())
        _wait_for_end(client, process)
        pid = client.welcome.pid
    told = f"; unfinished requests were aborted ({unfinished})" if unfinished else ""
    click.echo(f"the engine (pid {pid}) has stopped{told}", err=True)
    ctx.exit(1 if unfinished else 0)


@contextlib.contextmanager
def _process(client: RemoteClient) -> Iterator[int | None]:
    """Something to wait for the engine's process by, taken while it answers; None: it is on another machine."""
    from enginebay.engine.service.welcome import boot_id

    descriptor = None
    if client.welcome.boot == boot_id():
        with contextlib.suppress(OSError):  # of another pid namespace, or an old kernel
            descriptor = os.pidfd_open(client.welcome.pid)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _wait_for_end(client: RemoteClient, process: int | None) -> None:
    """Until the process has ended, or, elsewhere, the connection. Raises ``EngineDead`` when that takes too long."""
    from enginebay.errors import EnginebayError, EngineDead

    if process is not None and select.select([process], [], [], _MOST_SECONDS)[0]:
        return
    deadline = time.monotonic() + (_MOST_SECONDS if process is None else 0.0)
    while time.monotonic() < deadline:
        try:
            client.check_alive()
        except EnginebayError:
            return
        time.sleep(_LOOK_SECONDS)
    raise EngineDead(f"the engine (pid {client.welcome.pid}) was asked to stop, and has not for {_MOST_SECONDS:g} s")
