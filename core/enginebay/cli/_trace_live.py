"""``enginebay trace --live``: which file to follow, and what is shown of it."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import click

from enginebay.cli._signals import interrupts
from enginebay.cli._style import printable
from enginebay.cli._workers import clock_time
from enginebay.errors import ConfigError, EngineDead
from enginebay.telemetry import WINDOW_SECONDS, Live, Tail

_BETWEEN_LOOKS: Final = 1.0
_HOME_AND_CLEAR: Final = "\x1b[H\x1b[J"
_HOW: Final = "start it with 'enginebay up --trace FILE', or with [telemetry] file in engine.toml"


class Followed(NamedTuple):
    """A trace file, and whether somebody may still write to it."""

    file: Path
    is_written: Callable[[], bool]


def find(source: str | None) -> Followed:
    """The trace of the engine at this address, or this file; None: of the only engine of this user.

    Raises ``ConfigError`` or ``EngineDead``.
    """
    if source is not None and "://" not in source:
        file = Path(source)
        if not file.exists():
            raise ConfigError(
                f"{file}: no such file. Follow a trace that is being written: 'enginebay up --trace FILE' does, and "
                "'enginebay trace --live' alone finds it."
            )
        return Followed(file, lambda: True)
    from enginebay.engine.front.connect import find_address
    from enginebay.runfolder import live_folders
    from enginebay.telemetry import read_where
    from enginebay.transport.front_address import FrontAddress, read_address

    address = find_address(None if source is None else str(FrontAddress.parse(source)))
    for folder in live_folders():
        if read_address(folder) == address:
            where = read_where(folder)
            if where is None:
                raise ConfigError(f"the engine at {address} writes no trace file: {_HOW}")
            return Followed(where, lambda: folder in live_folders())  # noqa: B023  # the loop ends here
    raise EngineDead(
        f"no engine of this user listens at {address} on this machine. On the machine where it runs, its trace file "
        "itself can be followed: enginebay trace --live FILE"
    )


def follow(followed: Followed) -> None:
    """Show what comes, until the engine has ended or Ctrl-C."""
    interrupts.quiet()  # it ends the looking alone
    tail, live = Tail(followed.file), Live()
    show = _Page(followed.file, tail, live).show if sys.stdout.isatty() else _lines
    try:
        while True:
            goes_on = followed.is_written()  # before what is there is read: what comes after the end is not lost
            has_more = True
            while has_more:
                spans, has_more = tail.read()
                show([printable(f"{clock_time(ns / 1e9)}  {text}") for ns, text in live.add(spans)])
            if not goes_on:
                break
            time.sleep(_BETWEEN_LOOKS)
    except KeyboardInterrupt:
        return
    finally:
        tail.close()
    click.echo("the engine has ended", err=True)


def _lines(lines: list[str]) -> None:
    for line in lines:
        click.echo(line)
    sys.stdout.flush()


class _Page:
    """A terminal's whole window, drawn afresh each time."""

    def __init__(self, file: Path, tail: Tail, live: Live) -> None:
        self._file, self._tail, self._live = file, tail, live

    def show(self, lines: list[str]) -> None:
        now = time.time_ns()
        parts = [f"{self._file}  {clock_time(now / 1e9)}  Ctrl-C ends the looking"]
        parts.append(f"ended: {self._live.totals() or 'nothing yet'}{self._damaged()}")
        if last := self._live.last():
            parts.append("\n".join(["last", *(f"  {clock_time(ns / 1e9)}  {text}" for ns, text in last)]))
        parts.append(
            f"the last {WINDOW_SECONDS} s (what still runs is not in it: a span comes when it ends)\n"
            + (self._live.table(now) or "  nothing ended")
        )
        room = shutil.get_terminal_size()
        shown = [line[: room.columns] for line in printable("\n\n".join(parts)).splitlines()[: room.lines - 1]]
        click.echo(_HOME_AND_CLEAR + "\n".join(shown))
        sys.stdout.flush()

    def _damaged(self) -> str:
        count = self._tail.damaged
        return f"; {count} damaged line{'s' if count > 1 else ''} left out" if count else ""
