"""The front ends of an engine that was killed remove all that it had, whichever of its locks comes free the last."""

from __future__ import annotations

import fcntl
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from enginebay.engine.remote.link import RemoteLink
from enginebay.engine.remote.requests import RemoteRequests
from enginebay.runtime import system_runtime
from enginebay.transport.front_address import FrontAddress

DEAD = 2**22 + 1  # beyond any process's number


@pytest.fixture
def root() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="eb-"))
    yield path
    shutil.rmtree(path)


def folder(root: Path, name: str) -> Path:
    path = root / name
    path.mkdir(mode=0o700)
    (path / "lock").write_text(f"{DEAD}\n")
    (path / "manifest").write_text("")
    return path


@pytest.mark.parametrize("late", ["0000000a", "0000000b"])
def test_each_lock_is_waited_for(root: Path, late: str) -> None:  # X12
    front, group = folder(root, "0000000a"), folder(root, "0000000b")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(front / "front"))
        door.listen()
        clock = system_runtime().clock
        link = RemoteLink(FrontAddress.parse(f"ipc://{front}/front"), None, RemoteRequests(), clock)
    link._welcome = SimpleNamespace(pid=DEAD)  # type: ignore[assignment]  # all that is read of it
    with (root / late / "lock").open("r+") as lock:  # the kernel closes what a dead process had open one by one
        fcntl.flock(lock, fcntl.LOCK_EX)
        tidying = threading.Thread(target=link._tidy)
        tidying.start()
        other = front if late == group.name else group
        while other.exists():
            assert tidying.is_alive()
    tidying.join(30)
    assert list(root.iterdir()) == []
    link._wire.close()
