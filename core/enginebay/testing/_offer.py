"""Makes a module an installed plugin for the length of a test, also for processes that the test starts."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from enginebay.interfaces import Kind
from enginebay.plugins import PluginHost


def offer(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, name: str, module: str) -> None:
    """Write the metadata of a package that offers ``module`` as plugin ``name``, and put it on the path."""
    about = folder / f"enginebay_kit_{kind.value}_{name}-0.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: enginebay-kit-{kind.value}-{name}\nVersion: 0.0\n", encoding="utf-8"
    )
    (about / "entry_points.txt").write_text(f"[{kind.group}]\n{name} = {module}\n", encoding="utf-8")
    if str(folder) not in sys.path:
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
        inherited = os.environ.get("PYTHONPATH")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *([inherited] if inherited else [])]))
    importlib.invalidate_caches()


def offer_executor_again(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, other: str) -> None:
    """Offer the installed executor ``name`` under the name ``other`` as well, from a module of its own."""
    original = PluginHost().find(Kind.EXECUTOR, name).module
    module = f"kit_renamed_{other}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(
        "from dataclasses import replace\n"
        f"import {original} as original\n"
        "from enginebay.hookspecs import hookimpl\n\n\n"
        "@hookimpl\n"
        "def enginebay_register_executors():\n"
        "    offered = original.enginebay_register_executors()\n"
        f"    return [replace(one, name={other!r}) for one in offered if one.name == {name!r}]\n",
        encoding="utf-8",
    )
    offer(folder, monkeypatch, Kind.EXECUTOR, other, module)
