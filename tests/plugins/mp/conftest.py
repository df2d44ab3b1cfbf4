"""Executors ``mp`` driven by hand, over a runner that misbehaves when it is asked to."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay.interfaces import Kind
from enginebay.testing._executor_driver import ExecutorDriver
from enginebay.testing._offer import offer
from enginebay.testing.fakes import FAKE_RUNNER, KIT_EXTENSION
from support import wild_runner
from support.census import Census

Drive = Callable[..., ExecutorDriver]


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path of this process and of its children, that offers the wild runner."""
    folder = tmp_path / "offered"
    folder.mkdir()
    shutil.copy(wild_runner.__file__, folder / "wild_runner.py")
    offer(folder, monkeypatch, Kind.RUNNER, FAKE_RUNNER, "wild_runner")
    offer(folder, monkeypatch, Kind.WORKER_EXTENSION, KIT_EXTENSION, "enginebay.testing.fakes")
    return folder


@pytest.fixture
def census(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Census:
    """Taken before anything is started; its mark is in the environment of all that is."""
    taken = Census()
    for name, value in taken.environment({}).items():
        monkeypatch.setenv(name, value)
    return taken


@pytest.fixture
def drive(offered: Path, census: Census, tmp_path: Path) -> Iterator[Drive]:
    """Makes drivers of so many ranks; at the end they are stopped, and nothing may be left of them."""
    made: list[ExecutorDriver] = []

    def drive(world_size: int = 2, **options: Any) -> ExecutorDriver:
        folder = tmp_path / f"driver{len(made)}"
        made.append(ExecutorDriver("mp", folder, options=options, world_size=world_size))
        return made[-1]

    yield drive
    for driver in made:
        driver.gate.touch()
        if driver.executor is not None:
            driver.stop()
            driver.executor = None
        driver.run_folder.close()
    census.check()
