"""The options that every command with a config has, and how they become one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from enginebay.config import Resolved, load

F = TypeVar("F", bound=Callable[..., Any])


def config_options(function: F) -> F:
    """Add ``--config PATH`` and a repeatable ``--set KEY=VALUE``; they arrive as ``config`` and ``sets``."""
    sets = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set one key over the file and the environment, as in scheduler.max_num_seqs=8. Repeatable.",
    )
    config = click.option(
        "--config",
        "config",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="The engine.toml to use. Without it: the defaults, and ENGINEBAY__SECTION__KEY from the environment.",
    )
    return config(sets(function))


def resolve(config: Path | None, sets: Sequence[str]) -> Resolved:
    """The config of these options, validated; raises ``ConfigError`` with every fault at once."""

    def also(rest: Resolved, left_out: Collection[str]) -> Sequence[str]:
        from enginebay.engine.startup.named import also_wrong

        return also_wrong(rest, left_out)

    return load(config, sets=sets, also=also)
