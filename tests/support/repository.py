"""Where things stand in this repository, for tests about the repository itself."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core" / "enginebay"
PLUGINS = ROOT / "plugins"


def pyproject() -> dict[str, Any]:
    """The parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def plugin_folders() -> list[Path]:
    """Each built-in plugin's package folder, sorted by name."""
    return sorted(
        (p for p in PLUGINS.glob("*/*") if p.is_dir() and p.name.startswith("enginebay_")), key=lambda p: p.name
    )


def sources(*folders: Path) -> Iterator[tuple[Path, ast.Module]]:
    """(path, tree) of each Python file below the folders; fails when there is none."""
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    assert files, f"no sources in {folders}"
    for file in files:
        yield file.relative_to(ROOT), ast.parse(file.read_text(), filename=str(file))
