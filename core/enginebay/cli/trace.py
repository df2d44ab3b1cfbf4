"""``enginebay trace FILE``: a trace file as a tree in the terminal."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from enginebay.cli._style import printable
from enginebay.errors import ConfigError

_SHOWN = 20


def _columns() -> int:
    """The terminal's width; in a pipe, what most people can read."""
    return shutil.get_terminal_size((110, 24)).columns if sys.stdout.isatty() else 110


@click.command("trace")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--trace-id", metavar="HEX", help="Only the trace whose id begins so.")
@click.option("--all", "everything", is_flag=True, help="Every trace and attribute; steps are folded otherwise.")
def command(file: Path, trace_id: str | None, everything: bool) -> None:
    """Show a trace file as a tree: durations in milliseconds, and percent of the parent.

    The traces of steps are folded into one table of medians, and of many requests the first are shown, unless --all or
    --trace-id asks for them. Starts and recoveries are always shown.

    Exit codes: 0, and 2 when the file cannot be read or has no such trace.

    \b
    Examples:
      enginebay generate "Hello" --trace hello.jsonl
      enginebay trace hello.jsonl
      enginebay trace hello.jsonl --all
    """
    from enginebay.telemetry import read_spans, render_steps, render_tree
    from enginebay.tracing import ENGINE_RECOVER, ENGINE_START, ENGINE_STEP

    spans = read_spans(file)
    ids = list(dict.fromkeys(span.trace_id for span in spans))
    if not spans:
        click.echo(printable(f"{file} holds no spans."))
        return
    if trace_id is not None:
        chosen = [span for span in spans if span.trace_id.startswith(trace_id.lower())]
        if not chosen:
            some = ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")
            raise ConfigError(f"{file}: no trace id begins with {trace_id!r}. It holds {len(ids)}: {some}")
        click.echo(printable(render_tree(chosen, columns=None)))
        return
    if everything:
        click.echo(printable(render_tree(spans, columns=None)))
        return

    steps = {span.trace_id for span in spans if span.name == ENGINE_STEP}
    others = [i for i in ids if i not in steps]
    rare = {span.trace_id for span in spans if span.name in (ENGINE_START, ENGINE_RECOVER)}
    shown = {*others[:_SHOWN], *rare}
    blocks = []
    if shown:
        blocks.append(render_tree([span for span in spans if span.trace_id in shown], columns=_columns()))
    if len(others) > len(shown):
        blocks.append(f"{len(others) - len(shown)} more traces: --all shows them.")
    if steps:
        table = render_steps([span for span in spans if span.trace_id in steps])
        blocks.append(f"{len(steps)} recorded step{'s' if len(steps) > 1 else ''} (--all shows each)\n{table}")
    click.echo(printable("\n\n".join(blocks)))
