"""``enginebay trace``: a trace file as trees and tables in the terminal, as a page, for Perfetto, and as it grows."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from enginebay.cli._style import printable
from enginebay.cli._trace_output import STDOUT, check, read, write
from enginebay.errors import ConfigError

if TYPE_CHECKING:
    from enginebay.telemetry import SpanRecord

_SHOWN = 20


def _columns() -> int:
    """The terminal's width; in a pipe, what most people can read."""
    return shutil.get_terminal_size((110, 24)).columns if sys.stdout.isatty() else 110


@click.command("trace")
@click.argument("source", metavar="[FILE|ADDRESS]", required=False)
@click.option("--trace-id", metavar="HEX", help="Only the trace whose id begins so.")
@click.option("--all", "everything", is_flag=True, help="Every trace and attribute; steps are folded otherwise.")
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="PAGE",
    help="Write a page with a timeline, for any browser; it needs no network.",
)
@click.option(
    "--perfetto",
    "perfetto_file",
    type=click.Path(path_type=Path),
    metavar="OUT",
    help="Write the trace for ui.perfetto.dev, as Chrome's trace events.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Follow the trace that 'enginebay up --trace' writes, of the engine at ADDRESS, of the only one, or FILE.",
)
def command(
    source: str | None,
    trace_id: str | None,
    everything: bool,
    html: Path | None,
    perfetto_file: Path | None,
    live: bool,
) -> None:
    """Show a trace file: as trees, with durations in milliseconds and percent of the parent; where the time of the
    slowest start, request, step and recovery went; and all spans in one table by kind and name.

    "own" is time in which nothing below the span ran; the shares of a kind are of it, and make a hundred percent.
    Traces of steps are in the table alone, and of many requests the first are shown, unless --all or --trace-id asks
    for them. Starts and recoveries are always shown. With --html or --perfetto nothing is shown; - writes to stdout.

    --live shows what ended in the last ten seconds; without a terminal, a line for each request, start and recovery.

    Exit codes: 0, also when Ctrl-C ended --live; 2 when the file cannot be read or written, has no such trace, or the
    engine writes none; 70 when --live finds no engine.

    \b
    Examples:
      enginebay generate "Hello" --trace hello.jsonl
      enginebay trace hello.jsonl
      enginebay trace hello.jsonl --all
      enginebay trace hello.jsonl --html hello.html
      enginebay trace hello.jsonl --perfetto hello.json
      enginebay trace --live
    """
    if live:
        if trace_id is not None or everything or html is not None or perfetto_file is not None:
            raise click.UsageError("--live shows what comes; the other options are for a FILE that is read once")
        from enginebay.cli._trace_live import find, follow

        follow(find(source))
        return
    if source is None:
        raise click.UsageError("say which FILE: 'enginebay generate --trace FILE' writes one; or --live")
    file = Path(source)
    outputs = _outputs(file, html, perfetto_file)
    spans = read(file)
    if trace_id is not None:
        spans = _chosen(file, spans, trace_id)
    if outputs:
        for option, path, made in outputs:
            _write(option, path, made, spans, file)
    elif not spans:
        click.echo(printable(f"{file} holds no spans."))
    else:
        click.echo(printable(_text(spans, everything, is_one=trace_id is not None)))


def _outputs(file: Path, html: Path | None, perfetto: Path | None) -> list[tuple[str, Path, str]]:
    """(option, path, where to open it), each checked: it is said at once, and not after a large file was read."""
    from enginebay.telemetry import _page, _perfetto

    found = []
    for option, path, begin, how in (
        ("--html", html, _page.BEGIN, "open it in a browser"),
        ("--perfetto", perfetto, _perfetto.BEGIN, "open it at ui.perfetto.dev"),
    ):
        if path is not None:
            check(option, path, begin)
            found.append((option, path, how))
    if len(found) == 2 and html == perfetto:
        raise click.UsageError("--html and --perfetto are two files: name another for one of them")
    return found


def _write(option: str, path: Path, how: str, spans: list[SpanRecord], file: Path) -> None:
    from enginebay.telemetry import forest, page, perfetto

    roots = forest(spans)
    content = page(roots, title=file.name) if option == "--html" else perfetto(roots)
    write(option, path, content)
    if path != STDOUT:
        click.echo(printable(f"{path}: {len(spans)} spans, {max(1, len(content) // 1000)} kB; {how}"), err=True)


def _chosen(file: Path, spans: list[SpanRecord], trace_id: str) -> list[SpanRecord]:
    chosen = [span for span in spans if span.trace_id.startswith(trace_id.lower())]
    if not chosen and spans:
        ids = list(dict.fromkeys(span.trace_id for span in spans))
        some = ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")
        raise ConfigError(f"{file}: no trace id begins with {trace_id!r}. It holds {len(ids)}: {some}")
    return chosen


def _text(spans: list[SpanRecord], everything: bool, *, is_one: bool) -> str:
    from enginebay.telemetry import forest, render_slowest, render_summary, render_tree, slowest, summary

    roots = forest(spans)
    blocks = [render_tree(spans, columns=None)] if everything or is_one else _some_trees(spans)
    blocks += [render_slowest(slowest(roots)), render_summary(summary(roots))]
    return "\n\n".join(blocks)


def _some_trees(spans: list[SpanRecord]) -> list[str]:
    """Starts, recoveries, and the first of the rest, without steps."""
    from enginebay.telemetry import render_tree
    from enginebay.tracing import ENGINE_RECOVER, ENGINE_START, ENGINE_STEP

    steps = {span.trace_id for span in spans if span.name == ENGINE_STEP}
    rare = {span.trace_id for span in spans if span.name in (ENGINE_START, ENGINE_RECOVER)}
    others = [one for one in dict.fromkeys(span.trace_id for span in spans) if one not in steps]
    shown = {*others[:_SHOWN], *rare}
    blocks = []
    if shown:
        blocks.append(render_tree([span for span in spans if span.trace_id in shown], columns=_columns()))
    if left := len([one for one in others if one not in shown]):
        blocks.append(f"{left} more traces: --all shows them.")
    if steps:
        blocks.append(f"{len(steps)} recorded step{'s' if len(steps) > 1 else ''}: --all shows each.")
    return blocks
