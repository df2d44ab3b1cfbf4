"""The options of commands that speak to an engine in another process, and what they say to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from enginebay.cli._grouped import GroupedOption

if TYPE_CHECKING:
    from enginebay.engine.remote.remote import RemoteClient
    from enginebay.messages import Control, ControlDone

F = TypeVar("F", bound=Callable[..., Any])

ANY = ""
"""What ``--connect`` without a value stands for: the only engine of this user."""

SLOW_AFTER = 1.0
"""Seconds after which it is said what an engine is waited for: most of what it refuses it has refused by then."""

_HEADING = "An engine that runs already"
_LOOK_SECONDS = 1.0


def keys_option(function: F) -> F:
    """Add ``--keys``."""
    return click.option(
        "--keys",
        type=click.Path(path_type=Path),
        metavar="FILE",
        cls=GroupedOption,
        heading=_HEADING,
        help="The client's part of the engine's key file (FILE.client), for tcp:// addresses.",
    )(function)


def connect_options(function: F) -> F:
    """Add ``--connect``, ``--keys`` and ``--tokenizer``."""
    tokenizer = click.option(
        "--tokenizer",
        type=click.Path(path_type=Path),
        metavar="PATH",
        cls=GroupedOption,
        heading=_HEADING,
        help="Where to read the engine's tokenizer, if its own files cannot be read here.",
    )
    connect = click.option(
        "--connect",
        is_flag=False,
        flag_value=ANY,
        default=None,
        metavar="[ADDRESS]",
        cls=GroupedOption,
        heading=_HEADING,
        help="Ask the engine that 'enginebay up' runs at ADDRESS; without ADDRESS, the only one of this user.",
    )
    return connect(keys_option(tokenizer(function)))


@contextmanager
def remote(address: str | None, keys: Path | None) -> Iterator[RemoteClient]:
    """A connection to a running engine, for control. It leaves the engine running."""
    from enginebay.engine.front.connect import find_address
    from enginebay.engine.remote.remote import RemoteClient
    from enginebay.runtime import system_runtime

    client = RemoteClient.connect(find_address(address), system_runtime(), keys=keys)
    try:
        yield client
    finally:
        client.stop()


def ask(client: RemoteClient, command: Control, *, slow: str = "") -> ControlDone:
    """What the engine answers; waits as long as it is there, and says ``slow`` once when that takes long."""
    from enginebay.runtime import system_runtime

    runtime = system_runtime()
    answer = client.control(command)
    seconds = SLOW_AFTER if slow else _LOOK_SECONDS
    while True:
        try:
            return runtime.wait(answer, runtime.clock.now() + seconds)
        except TimeoutError:
            client.check_alive()
        if slow:
            click.echo(slow, err=True)
        slow, seconds = "", _LOOK_SECONDS


def ask_change(client: RemoteClient, command: Control, *, slow: str = "") -> ControlDone:
    """As ``ask``, for a change of the engine. What it cannot be is a fault of the command line: ``ConfigError``."""
    from enginebay.errors import ConfigError, InvalidRequest

    try:
        return ask(client, command, slow=slow)
    except InvalidRequest as error:  # its code is that of a request of a batch, of which there is none
        raise ConfigError(str(error)) from error
