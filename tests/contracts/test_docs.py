"""The docs cannot drift: their Python runs, their TOML loads, the files and commands that they name exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from enginebay.cli import group
from enginebay.config import EngineConfig
from support.repository import ROOT


class Block(NamedTuple):
    """A fenced block of a document."""

    source: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.source.relative_to(ROOT)}:{self.line}"


def _documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def _blocks(language: str) -> list[Block]:
    found = []
    for path in _documents():
        text = path.read_text()
        for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            if match[1].strip() == language:
                found.append(Block(path, text[: match.start()].count("\n") + 1, match[1], match[2]))
    return found


@pytest.mark.parametrize("block", _blocks("python"), ids=str)
def test_python_runs(block: Block) -> None:
    exec(compile(block.text, str(block), "exec"), {"__name__": "docs"})


@pytest.mark.parametrize("block", _blocks("python model"), ids=str)
def test_python_runs_with_the_model(block: Block, smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block.text, str(block), "exec"), {"__name__": "docs"})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("block", _blocks("toml"), ids=str)
def test_toml_is_a_config(block: Block) -> None:
    EngineConfig.model_validate(tomllib.loads(block.text))


@pytest.mark.parametrize("path", _documents(), ids=lambda p: p.name)
def test_links_point_to_files(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_commands_exist() -> None:
    context = click.Context(group)
    lines = [line for block in _blocks("console") for line in block.text.splitlines()]
    asked = {match[1] for line in lines if (match := re.match(r"\$ enginebay (\w+)", line))}
    assert asked, "the docs show no command at all"
    assert asked <= set(group.list_commands(context))


def test_flags_exist() -> None:
    context = click.Context(group)
    for block in _blocks("console"):
        for line in block.text.splitlines():
            words = line.split("#")[0].split()
            if words[:2] != ["$", "enginebay"]:
                continue
            command = group.get_command(context, words[2])
            rest = words[3:]
            while isinstance(command, click.Group) and rest and (deeper := command.get_command(context, rest[0])):
                command, rest = deeper, rest[1:]
            assert command is not None
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in rest if word.startswith("--")} <= known, line
