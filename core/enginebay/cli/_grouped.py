"""Options under headings, so that a long ``--help`` can be read."""

from __future__ import annotations

from typing import Any

import click


class GroupedOption(click.Option):
    """An option that stands under ``heading`` in the help."""

    def __init__(self, *arguments: Any, heading: str = "", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.heading = heading


class GroupedCommand(click.Command):
    """A command whose help has a section per heading, after the options that have none."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        sections: dict[str, list[tuple[str, str]]] = {"": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(parameter, "heading", ""), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading or "Options"):
                formatter.write_dl(records)
