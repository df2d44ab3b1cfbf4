"""The plugins that this tree's pyproject.toml declares, as installed, whatever the environment was installed from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from support.repository import pyproject

__all__ = ["declare"]


def declare(folder: Path, more: Mapping[str, Mapping[str, str]] | None = None) -> Path:
    """Write the tree's entry points, and ``more`` of them (group, name → module), into a folder for the path."""
    about = folder / "enginebay-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: enginebay\nVersion: 0.1.0\n")
    lines = []
    for groups in (pyproject()["project"]["entry-points"], more or {}):
        for group, names in groups.items():
            lines += [f"[{group}]", *(f"{name} = {module}" for name, module in names.items())]
    (about / "entry_points.txt").write_text("\n".join(lines))
    return folder
