"""A probe whose runner goes wrong: installs the ill runner, and starts ``check --probe`` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.fake_engine import fake_model_folder
from support.fake_engines import ENGINEBAY, TESTS


def install_ill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the ill runner an installed plugin, here and in processes of ours; the folder of a model for it."""
    info = tmp_path / "site" / "ill_runner-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ill-runner\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[enginebay.runners]\nill = support.ill_runner\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), str(TESTS)]))
    return fake_model_folder(tmp_path / "model")


def sets(model: Path, *more: str, **options: Any) -> list[str]:
    """The config: one of ``more`` is a ``section.key=value``, ``options`` are the runner's."""
    every = [f"model.path={model}", "runner.use=ill", "cache.num_blocks=8", *more]
    return every + [f"runner.options.{key}={value}" for key, value in options.items()]


def arguments(model: Path, *more: str, **options: Any) -> list[str]:
    return ["check", "--probe", *(part for one in sets(model, *more, **options) for part in ("--set", one))]


def started(model: Path, tmp_path: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A probe that hangs in a process of its own, and the numbers of its child and of what that started."""
    mark = tmp_path / "mark"
    process = subprocess.Popen(
        [*ENGINEBAY, *arguments(model, how="hang", mark=mark)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 60
    while not mark.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    return process, [int(pid) for pid in mark.read_text().split()]


def gone(pids: list[int]) -> bool:
    """Whether none of the processes runs any more; they were killed, and a busy machine takes a moment for it.

    What init has not reaped yet counts as gone.
    """
    deadline = time.monotonic() + 10.0
    while any(map(_runs, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
