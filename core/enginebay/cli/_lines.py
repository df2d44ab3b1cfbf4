"""Text that is shown as it comes, and lines of the log between it: each of these begins on a line of its own."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from enginebay.cli._style import printable


class Shown(logging.Handler):
    """Writes an answer to stdout, and the log to stderr, where that is otherwise left to ``logging.lastResort``.

    Where both are one terminal, pipe or file, a line of the log ends the line of text before it. The end is written to
    stderr: what is on stdout is the answer's text, whoever reads it.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._is_one = _is_one()
        self._within = False

    def text(self, text: str) -> None:
        """The next piece of the answer."""
        self.acquire()
        try:
            click.echo(printable(text), nl=False)
            sys.stdout.flush()
            if text:
                self._within = not text.endswith("\n")
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        """A line of the log; called with the handler's lock held."""
        try:
            line = self.format(record)
            click.echo(f"\n{line}" if self._within and self._is_one else line, err=True)
            self._within = self._within and not self._is_one
        except Exception:
            self.handleError(record)


@contextmanager
def shown() -> Iterator[Shown]:
    """Show an answer; meanwhile the log is told between its lines."""
    before, handler = logging.lastResort, Shown()
    logging.lastResort = handler
    try:
        yield handler
    finally:
        logging.lastResort = before
        handler.close()


def _is_one() -> bool:
    try:
        out, err = os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # closed, or no file at all
        return False
    return (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)
