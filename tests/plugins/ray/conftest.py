"""One Ray of two nodes for the whole of a test module, for a start of Ray takes seconds."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from enginebay.runfolder import run_root
from enginebay.runtime import system_runtime
from enginebay_ray import cluster as connection
from enginebay_ray.door import load_ray
from support.census import Census
from support.kit import HEART

OBJECT_STORE_BYTES = 80_000_000


def _own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("enginebay-")]


def _actors() -> list[str]:
    """The workers of ours that live, by what Ray calls their processes."""
    names = []
    for child in psutil.Process().children(recursive=True):
        try:
            names.append(" ".join(child.cmdline()))
        except psutil.NoSuchProcess:
            continue
    return [name for name in names if name.startswith("ray::RayWorker")]


def _run_folders() -> list[str]:
    root = run_root()
    return sorted(entry.name for entry in root.iterdir()) if root.is_dir() else []


def _rays(census: Census) -> list[str]:
    """What is left of the Ray, zombies included; a helper of this process's engines is kept for the next one."""
    return [command for command in census.processes().values() if "enginebay.limited" not in command]


def _left() -> list[str]:
    return [*_own_threads(), *_actors(), *_run_folders()]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the kit, the suite runs what one start is enough for; the whole of it is a soak."""
    for item in items:
        if "TestRay" in item.nodeid and not any(word in item.name for word in HEART.split(" or ")):
            item.add_marker(pytest.mark.soak)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """The same as everywhere, but that Ray itself starts and ends processes of its own when it likes."""
    before = _left()
    yield
    until = time.monotonic() + 5.0
    while new := [one for one in _left() if one not in before]:
        if time.monotonic() > until:
            pytest.fail(f"left behind: {new}", pytrace=False)
        time.sleep(0.02)


@pytest.fixture(scope="module", autouse=True)
def own_runs() -> Iterator[None]:
    """Run folders of these tests are in a root of their own, so that others' come and go unseen."""
    root = Path(tempfile.mkdtemp(prefix="eb-"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("ENGINEBAY_RUN", str(root))
        yield
    assert not list(root.iterdir())
    root.rmdir()


@pytest.fixture(scope="module")
def two_nodes(own_runs: None) -> Iterator[str]:
    """The address of a Ray of two nodes with four CPUs each, this process connected; the second pretends two GPUs."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        census = Census()
        folder = Path(tempfile.mkdtemp(prefix="eb-"))
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        (folder / "ray").mkdir()
        for name, value in {
            **census.environment({}),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_TMPDIR": str(folder),  # it notes the cluster in "ray" of it, which a fresh machine has not in /tmp
            "RAY_worker_niceness": "0",  # beside another test's processes nicer workers hardly get to run
        }.items():
            monkeypatch.setenv(name, value)
        load_ray()
        from ray.cluster_utils import Cluster

        connection._read_settings_again()
        node: dict[str, Any] = {"num_cpus": 4, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
        started = Cluster(initialize_head=True, head_node_args={**node, "temp_dir": str(folder)})
        runtime = system_runtime(0)
        try:
            started.add_node(**node, num_gpus=2)
            monkeypatch.setenv("RAY_ADDRESS", started.address)
            joined = connection.join("auto", 0, runtime, time.monotonic() + 60)
            assert joined is not None
            yield started.address
            assert connection.leave(joined, runtime, time.monotonic() + 20)
        finally:
            started.shutdown()
        shutil.rmtree(folder)
        until = time.monotonic() + 15.0
        while (left := _rays(census)) and time.monotonic() < until:
            time.sleep(0.05)
        assert left == []  # descriptors of Ray's own library stay open in this process until it ends
    connection._read_settings_again()
