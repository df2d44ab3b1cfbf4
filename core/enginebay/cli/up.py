"""``enginebay up``: run an engine in the foreground, for front ends in other processes."""

from __future__ import annotations

import os
import queue
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from enginebay.cli._options import config_options, resolve
from enginebay.cli._signals import INTERRUPTED, TERMINATED
from enginebay.cli._style import columns, printable
from enginebay.cli._trace_file import with_trace
from enginebay.config import EngineConfig

if TYPE_CHECKING:
    from enginebay.engine.front.front import Front
    from enginebay.engine.service.service import EngineService
    from enginebay.transport.front_door import FrontDoor

_STOP = 0
"""In the queue of signals: a front end has asked for the end."""

_LOOK_SECONDS = 0.5
_DRAIN_LOOK_SECONDS = 0.1


@click.command("up")
@click.option(
    "--address",
    metavar="ADDRESS",
    help="Where to listen: ipc://PATH or tcp://HOST:PORT. Default: a socket in this user's runtime folder.",
)
@click.option(
    "--keys",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Keys for tcp://; made when FILE is not there, with FILE.client to be copied to the clients.",
)
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", help="Write the trace to FILE, anew.")
@config_options
@click.pass_context
def command(
    ctx: click.Context,
    address: str | None,
    keys: Path | None,
    trace: Path | None,
    config: Path | None,
    sets: tuple[str, ...],
) -> None:
    """Run an engine in the foreground; front ends connect to it, and come and go as they like.

    When it is ready, the address is printed to standard output, and what is in force to standard error.

    Ctrl-C or SIGTERM: new requests are refused, running ones have [deadlines] drain seconds to end; then it stops. A
    second one aborts them.

    Exit codes: 0 after a drain, or when a front end stopped it, 2 when config or model are refused, 3 when the start
    failed, also that of new workers, 4 when a worker was lost, 5 when one hangs, 70 when the engine failed, 130 and 143
    when a signal aborted requests.

    \b
    Examples:
      enginebay up --config engine.toml
      enginebay up --address tcp://127.0.0.1:5555 --keys engine.keys
      enginebay generate "What is the capital of France?" --connect
    """
    if trace is not None:
        sets = with_trace(trace, config, sets)
    resolved = resolve(config, sets).config
    server = resolved.server
    with ExitStack() as stack:
        door = stack.enter_context(_door(address or server.address, keys or server.keys, resolved.telemetry.file))
        with _loading():
            from enginebay.engine.front.front import Front

            begun = time.monotonic()
            front = Front.open(config, sets)
        stack.callback(front.close)
        signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        service = stack.enter_context(_service(front, door, resolved, signals))
        _catch(signals)
        _say_ready(front, door, keys or server.keys, time.monotonic() - begun)
        code = _run(front, service, signals)
        front.close()
    _note("stopped")
    ctx.exit(code)


@contextmanager
def _door(address: str | None, keys: Path | None, trace: Path | None) -> Iterator[FrontDoor]:
    """Listen before the model is loaded: what is wrong with the address is said at once."""
    from enginebay.runfolder import RunFolder, socket_path
    from enginebay.telemetry import write_where
    from enginebay.transport.front_address import FRONT_NAME, FrontAddress, write_address
    from enginebay.transport.front_door import FrontDoor
    from enginebay.transport.front_keys import ServerKeys, client_file

    with ExitStack() as stack:
        folder = RunFolder.make()
        stack.callback(folder.close)
        if address is None:
            where = FrontAddress(path=socket_path(folder.path, FRONT_NAME))
        else:
            where = FrontAddress.parse(address)
        server_keys = None
        if keys is not None:
            if where.is_local:
                raise click.UsageError("keys are for tcp:// addresses; an ipc:// address is guarded by its file's mode")
            is_new = not os.path.lexists(keys)
            server_keys = ServerKeys.read_or_make(keys)
            if is_new:
                click.echo(f"made {keys}, and {client_file(keys)} for clients: they need --keys with it", err=True)
        door = FrontDoor(where, server_keys)
        stack.callback(door.close)
        if trace is not None:
            write_where(folder.path, trace)
        write_address(folder.path, door.address)
        yield door


@contextmanager
def _service(
    front: Front, door: FrontDoor, config: EngineConfig, signals: queue.SimpleQueue[int]
) -> Iterator[EngineService]:
    from enginebay.engine.service.service import EngineService, Served

    served = Served(
        model=front.model,
        tokenizer=front.tokenizer_path,
        in_force=front.in_force,
        limits=front.client.limits,
        deadlines=config.deadlines,
        stall=config.server.stall,
        resume=config.server.resume,
        groups=config.parallel.data_parallel_size,
    )
    service = EngineService(front.client, door, served, front.runtime, on_stop=lambda: signals.put(_STOP), tell=_note)
    service.start()
    try:
        yield service
    finally:
        service.close()


def _run(front: Front, service: EngineService, signals: queue.SimpleQueue[int]) -> int:
    """Until the engine ends, or is to end; the exit code. Raises the engine's own end."""
    from enginebay.errors import EnginebayError, EngineDead

    try:
        while (number := _signal(front, signals)) is None:
            pass  # each turn looks whether the engine is there
        if number != _STOP:
            number = _drain(front, signals, number)
    except EnginebayError as end:
        service.close(end)
        raise
    service.close(EngineDead(f"the engine (pid {os.getpid()}) was stopped"))
    return {_STOP: 0, signal.SIGINT: INTERRUPTED}.get(number, TERMINATED)


def _drain(front: Front, signals: queue.SimpleQueue[int], first: int) -> int:
    """Let the running requests end; ``_STOP`` when they have, else the signal that aborts them."""
    from enginebay.messages import Drain

    answer = front.client.control(Drain())
    _note("stopping: new requests are refused, and those that run may end; once more aborts them")
    while not answer.done():
        if (number := _signal(front, signals, _DRAIN_LOOK_SECONDS)) is not None:
            return number
    unfinished = int(front.runtime.wait(answer, front.runtime.clock.now()).facts["unfinished"])
    if unfinished:
        _note(f"[deadlines] drain is over: unfinished requests are aborted ({unfinished})")
    return first if unfinished else _STOP


def _signal(front: Front, signals: queue.SimpleQueue[int], seconds: float = _LOOK_SECONDS) -> int | None:
    """The next signal, if one comes within so many seconds. Raises the engine's end."""
    try:
        return signals.get(timeout=seconds)
    except queue.Empty:
        front.client.check_alive()
        return None


def _catch(signals: queue.SimpleQueue[int]) -> None:
    """Put signals into the queue, whose ``put`` may interrupt its own ``get``; the third one ends the process.

    So it stays to the process's end: closing is not to be interrupted in the middle.
    """
    seen = 0

    def caught(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen > 2:
            os._exit(INTERRUPTED if number == signal.SIGINT else TERMINATED)
        signals.put(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # else it was started by nohup
        numbers.append(signal.SIGHUP)
    for one in numbers:
        signal.signal(one, caught)


@contextmanager
def _loading() -> Iterator[None]:
    """Say that it takes a while: on a terminal as long as it does."""
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("loading the model"):
            yield
    else:
        _note("loading the model")
        yield


def _say_ready(front: Front, door: FrontDoor, keys: Path | None, seconds: float) -> None:
    """The address alone on standard output, so that a script can read it."""
    from enginebay.transport.front_keys import client_file

    rows = columns(list(front.in_force.items()))
    option = f" --connect {door.address}"
    if keys is not None:
        option += f" --keys {shlex.quote(str(client_file(keys)))}"
    _note("\n".join([f"ready after {seconds:.1f} s", *rows, "ask it with: enginebay generate PROMPT" + option]))
    click.echo(str(door.address))
    sys.stdout.flush()


def _note(text: str) -> None:
    click.echo(printable(text), err=True)
