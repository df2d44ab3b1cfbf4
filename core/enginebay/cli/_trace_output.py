"""What ``enginebay trace`` reads and writes: a bar where reading takes long, and files that replace only our own."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from enginebay.cli._style import printable
from enginebay.errors import ConfigError

if TYPE_CHECKING:
    from enginebay.telemetry import SpanRecord

_PATIENCE_SECONDS: Final = 0.5
STDOUT: Final = Path("-")


def read(file: Path) -> list[SpanRecord]:
    """The spans of a trace file; on a terminal a bar says how far it is, when that takes a while."""
    from enginebay.telemetry import read_spans

    with _bar(f"reading {file.name}") as bar:
        return read_spans(file, bar.move if sys.stderr.isatty() else None)


class _Bar:
    """A bar on stderr, which comes when there is something to wait for."""

    def __init__(self, label: str, stack: ExitStack) -> None:
        self._label, self._stack = label, stack
        self._begun = time.monotonic()
        self._last = 0
        self._bar: click._termui_impl.ProgressBar[int] | None = None

    def move(self, done: int, size: int) -> None:
        """So many of so many bytes are read."""
        if self._bar is None:
            if time.monotonic() - self._begun < _PATIENCE_SECONDS:
                return
            self._bar = self._stack.enter_context(
                click.progressbar(length=size, label=printable(self._label), file=sys.stderr)
            )
        self._bar.length = size
        self._bar.update(done - self._last)
        self._last = done


@contextmanager
def _bar(label: str) -> Iterator[_Bar]:
    with ExitStack() as stack:
        yield _Bar(label, stack)


def check(option: str, path: Path, begin: bytes) -> None:
    """That ``path`` may be written: it is new, or a file that begins as ours do. Raises ``ConfigError``."""
    if path == STDOUT:
        return
    try:
        with path.open("rb") as file:
            is_ours = file.read(len(begin)) in (b"", begin)
    except FileNotFoundError:
        if not path.absolute().parent.is_dir():
            raise ConfigError(
                f"{option} {path}: the folder {path.parent} does not exist. Make it, or name another file."
            ) from None
        return
    except OSError as error:
        raise ConfigError(f"{option} {path}: cannot be written: {error.strerror}; name a new file") from error
    if not is_ours:
        raise ConfigError(f"{option} {path}: the file that is there was not made so; remove it, or name another")


def write(option: str, path: Path, content: bytes) -> None:
    """Write the whole file or nothing; as a trace, only its owner may read it. Raises ``ConfigError``."""
    if path == STDOUT:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    whole = path.resolve()
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{whole.name}.", dir=whole.parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
            os.replace(name, whole)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise ConfigError(f"{option} {path}: cannot be written: {error.strerror}; name another file") from error
