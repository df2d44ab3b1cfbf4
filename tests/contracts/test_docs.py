"""The docs cannot drift: their Python runs, their TOML loads, the files and commands that they name exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from enginebay.cli import group
from enginebay.config import EngineConfig
from support.kit import HEART
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
            if fnmatch(match[1].strip(), language):
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


def _named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*_documents(), *sorted((ROOT / "examples").glob("*/README.md"))], ids=_named)
def test_what_is_to_be_installed_can_be(path: Path) -> None:
    """Nothing of ours is on an index: a folder of the clone, or an extra of the enginebay that is installed."""
    for line in re.findall(r"^(?: {4}|\$ )pip install (.+)$", path.read_text(), re.MULTILINE):
        [what] = [word for word in shlex.split(line.replace("-c constraints.txt", "")) if not word.startswith("-")]
        folder, _, _ = what.partition("[")
        near = ROOT if folder.startswith("./examples") else path.parent
        built = folder == "./enginebay-sjf" and path.name == "schedulers.md"  # the page has its reader make it
        assert built or (near / folder / "pyproject.toml").is_file(), f"{path}: pip install {line}"


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
            rest = rest[: rest.index("--")] if "--" in rest else rest  # what stands behind is another program's
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in rest if word.startswith("--")} <= known, line


@pytest.mark.parametrize(
    ("page", "kind", "name", "only"),
    [
        ("schedulers.md", "scheduler", "sjf", ""),
        ("runners.md", "runner", "sum", ""),
        ("executors.md", "executor", "popen", HEART),
        ("status.md", "status-sink", "folder", ""),
        pytest.param("executors.md", "executor", "popen", "", marks=pytest.mark.soak),
    ],
)
def test_what_a_page_builds_passes_the_conformance_kit(
    page: str, kind: str, name: str, only: str, tmp_path: Path, smollm2: Path
) -> None:
    module = f"enginebay_{name}"
    files = {block.language.split()[1]: block.text for block in _blocks("python *.py") if block.source.name == page}
    assert len(files) >= 2
    (tmp_path / module).mkdir()
    for file, text in {"__init__.py": "", **files}.items():
        (tmp_path / module / file).write_text(text)
    about = tmp_path / f"{module}-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text(f"[enginebay.{kind.replace('-', '_')}s]\n{name} = {module}.plugin\n")
    options = {"folder": str(tmp_path / "kept")} if kind == "status-sink" else {}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "enginebay.testing.plugin"),
            *("--pyargs", "enginebay.testing.suite", f"--{kind}", name, "--model", str(smollm2), "-k", only),
            *("--status-options", json.dumps(options)),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)


def test_the_translated_command_line_is_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    [line] = [b.text for b in _blocks("console") if "> engine.toml" in b.text]
    [shown] = [b.text for b in _blocks("toml") if b.source.name == "migrating-from-vllm.md"]
    words = shlex.split(line.removeprefix("$ enginebay").partition("> engine.toml")[0].replace("\\\n", " "))
    group.main(words, standalone_mode=False)
    assert capsys.readouterr().out == shown


def test_no_placeholder_is_left() -> None:
    for path in _documents():
        assert "@@" not in path.read_text(), f"{path.name} has a placeholder"
