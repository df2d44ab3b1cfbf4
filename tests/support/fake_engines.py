"""Fixtures of tests that start whole engines over the fake runner, in this process or in another."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.fake_engine import fake_config, fake_model_folder, fake_site

ENGINEBAY = [sys.executable, "-P", "-c", "from enginebay.cli import main; main()"]
"""The command line, to be run in another process."""

TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Installed:
    """The fake runner installed, and a model for it."""

    site: Path
    model: Path

    def config(self, **options: Any) -> dict[str, Any]:
        """A config; ``options`` are the fake runner's."""
        return fake_config(self.model, **options)

    def arguments(self, **options: Any) -> list[str]:
        """The same as ``--set`` arguments."""
        sets = [f"model.path={self.model}", "runner.use=fake", "cache.num_blocks=256"]
        sets += [f"runner.options.{key}={value}" for key, value in options.items()]
        return [part for one in sets for part in ("--set", one)]

    def environ(self) -> dict[str, str]:
        """The environment of a process that finds the fake runner installed."""
        path = os.pathsep.join([str(self.site), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "PYTHONPATH": path}


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    """For a fixture: ``yield from install(tmp_path, monkeypatch)``."""
    site = fake_site(folder / "site")
    monkeypatch.syspath_prepend(str(site))
    yield Installed(site=site, model=fake_model_folder(folder / "model"))
