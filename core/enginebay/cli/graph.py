"""``enginebay graph``: a captured model, or any torch module: nodes, code before and after each pass, a picture."""

from __future__ import annotations

import json
from pathlib import Path

import click

from enginebay.cli._graph_source import Shown, of_model, of_module
from enginebay.cli._graph_text import as_json, as_text
from enginebay.cli._options import config_options, resolve
from enginebay.cli._style import printable
from enginebay.errors import ConfigError, did_you_mean

_SECTIONS = ("ir", "nodes", "passes", "code")


@click.command("graph")
@click.argument("module", required=False, metavar="[package.module:Class]")
@config_options
@click.option("--show", multiple=True, type=click.Choice(_SECTIONS), help="Print only this part. Repeatable.")
@click.option("--pass", "passes", multiple=True, metavar="NAME", help="Print only what this pass did. Repeatable.")
@click.option("--diff", is_flag=True, help="Show of each pass the lines that it changed, instead of the whole code.")
@click.option("--verify-graph", is_flag=True, help="Run the code before and after each pass, and compare the results.")
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Write a picture of one layer.")
@click.option("--layer", type=click.IntRange(min=0), metavar="N", help="The layer in the picture. Without it: 1.")
@click.option(
    "--path",
    "folders",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A folder to import package.module from; the working directory is none unless it is named. Repeatable.",
)
@click.option("--json", "machine", is_flag=True, help="Print JSON instead of text.")
def command(
    module: str | None,
    config: Path | None,
    sets: tuple[str, ...],
    show: tuple[str, ...],
    passes: tuple[str, ...],
    diff: bool,
    verify_graph: bool,
    svg: Path | None,
    layer: int | None,
    folders: tuple[Path, ...],
    machine: bool,
) -> None:
    """Show a model's step as a graph, and what the graph passes make of it.

    Without an argument, the model of the config is captured by its runner, as for a start, and its weights are not
    read. With package.module:Class, a torch module that is made without arguments is traced by torch.fx instead;
    only those passes run that are meant for any module.

    Printed are the intermediate representation (ir), a table of its nodes (nodes), the code before and after each
    pass (passes), and the code that runs (code), which is a Python file: --show code prints that alone.

    --verify-graph reads the weights and takes float32, where results must not change: it names the first pass that
    changes them.

    Exit codes: 0, and 2 when the config is refused, the runner captures no graph, the module cannot be found, made or
    traced, or a pass raises or changes results.

    \b
    Examples:
      enginebay graph | less
      enginebay graph --set runner.use=v2 --show code > step.py
      enginebay graph --pass pack_projections --diff
      enginebay graph --verify-graph --show passes --diff
      enginebay graph --svg layer.svg --layer 3 --show nodes
      enginebay graph my_models.small:Net
      enginebay graph --path . net:Net --json
    """
    resolved = resolve(config, sets)
    if module is None:
        if folders:
            raise ConfigError("--path is for package.module:Class, and none is named")
        shown = of_model(resolved, verify=verify_graph)
    else:
        if verify_graph:
            raise ConfigError(
                f"--verify-graph runs the step of a model, whose inputs are known; those of {module} are not: "
                "leave one out"
            )
        shown = of_module(resolved, module, folders)
    known = [report.name for report in shown.reports]
    if unknown := [name for name in passes if name not in known]:
        raise ConfigError(
            f"no graph pass {unknown[0]!r} has run.{did_you_mean(unknown[0], known)} "
            f"Those that have: {', '.join(known) or 'none'}"
        )
    if svg is not None:
        _draw(shown, svg, layer)
    parts = show or (("passes",) if passes else _SECTIONS)
    if machine:
        click.echo(json.dumps(as_json(shown), indent=2))
    else:
        click.echo(printable(as_text(shown, parts, passes, diff=diff)), nl=False)


def _draw(shown: Shown, file: Path, layer: int | None) -> None:
    from enginebay.graph import picture_of, svg_text

    picture = picture_of(shown.graph_module, shown.context.constants, layer)
    try:
        file.write_text(svg_text(picture, shown.source), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error
    click.echo(printable(f"{picture.title}: {file}"), err=True)
