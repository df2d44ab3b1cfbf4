"""A bar on stderr for a batch that takes a while."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

__all__ = ["answers_bar"]


@contextlib.contextmanager
def answers_bar(total: int) -> Iterator[Callable[[int], None]]:
    """How many answers of ``total`` there are; yields the function that advances it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("answers", total=total)
        yield lambda count: bar.update(task, advance=count)
