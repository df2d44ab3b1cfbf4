"""Children that may ask to die with their parent: the thread that starts them lives exactly as long as they do."""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from enginebay import _processes
from enginebay.runtime import Spawner, Thread, system_runtime

PARENT = "enginebay-parent"
TIED = """
import ctypes, os, signal, sys, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.write(1, bytes([*b"tied", 10]))
time.sleep(float(sys.argv[1]))
"""


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == PARENT]


def wait_until_none() -> None:
    until = time.monotonic() + 30
    while threads():
        assert time.monotonic() < until, "the thread has no children and lives"
        time.sleep(0.005)


def test_the_parent_thread_outlives_its_children_and_no_more(tmp_path: Path) -> None:
    spawner = system_runtime().spawner
    reads, writes = os.pipe()
    made = []

    def start() -> None:  # in a thread that ends at once: a child of it would be killed
        for seconds in ("0.5", "600"):
            argv = [sys.executable, "-c", TIED, seconds]
            made.append(spawner.worker(argv, env=dict(os.environ), output=writes))

    starter = threading.Thread(target=start)
    starter.start()
    starter.join(30)
    os.close(writes)
    with open(reads, "rb") as said:
        assert [said.readline(), said.readline()] == [b"tied\n", b"tied\n"]
        short, long = made
        assert os.getpgid(short.pid) == short.pid
        assert short.wait(30) == 0
        assert long.poll() is None
        assert threads() == [PARENT]
        assert long.fileno() >= 0
        long.kill()
        assert long.wait(30) == -9
    wait_until_none()
    for process in made:
        process.close()
        process.close()
        assert process.fileno() == -1
    again = spawner.worker([sys.executable, "-c", ""], env={}, output=2)
    assert again.wait(30) == 0
    again.close()
    wait_until_none()


@pytest.mark.parametrize("moment", ["before the child is there", "after it"])
def test_a_child_that_nobody_waits_for_any_more_is_ended(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:  # X13
    starter, go = threading.current_thread(), threading.Event()
    started: list[int] = []
    interrupted: list[bool] = []
    real = _processes.start_process

    def start(*arguments: Any, **options: Any) -> Any:
        assert go.wait(30)
        child = real(*arguments, **options)
        started.append(child.pid)
        return child

    class Interrupted(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            if threading.current_thread() is starter and not interrupted:
                interrupted.append(True)
                if moment == "after it":
                    go.set()
                    super().result(30)
                raise KeyboardInterrupt
            return super().result(timeout)

    monkeypatch.setattr(_processes, "start_process", start)
    monkeypatch.setattr(_processes, "Future", Interrupted)
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(KeyboardInterrupt):
        system_runtime().spawner.worker(argv, env=dict(os.environ), output=2)
    go.set()
    wait_until_none()
    assert len(started) == 1
    assert not psutil.pid_exists(started[0])  # reaped, too


def test_what_cannot_be_started_leaves_no_thread() -> None:
    with pytest.raises(FileNotFoundError):
        system_runtime().spawner.worker(["/no/such/program"], env={}, output=2)
    wait_until_none()


def test_a_spawner_of_an_older_version_says_so() -> None:
    class Old(Spawner):
        def process(self, argv, *, env=None, pass_fds=()):  # type: ignore[no-untyped-def]  # as it was
            raise AssertionError

        def thread(self, name, target) -> Thread:  # type: ignore[no-untyped-def]  # as it was
            raise AssertionError

    with pytest.raises(NotImplementedError, match=r"^Old starts no workers$"):
        Old().worker([], env={}, output=2)
