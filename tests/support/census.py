"""What the machine holds of a run: processes, descriptors, sockets, shared memory and folders, before and after it.

A process that has left its parent is found again by a mark in its environment: give ``Census.environment()`` to the
first process of the run, and every descendant inherits it.
"""

from __future__ import annotations

import gc
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

__all__ = ["Census"]

MARK = "ENGINEBAY_CENSUS"
_SHM = Path("/dev/shm")  # it is looked at, nothing is made there


class Census:
    """Taken when it is made; ``left`` says what has come since and is still there.

    ``folders`` are watched for entries at any depth (run folders, sockets, locks). Own descriptors are compared by
    what they point to, so that one that was opened and closed in between does not count.
    """

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self.mark = secrets.token_hex(12)
        self._folders = tuple(folders)
        gc.collect()
        self._before = self._now()

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """``base`` (or this process's environment) with the mark of this census."""
        return {**(os.environ if base is None else base), MARK: self.mark}

    def processes(self) -> dict[int, str]:
        """Every living process that bears the mark or descends from this one, zombies included, with its command."""
        found: dict[int, str] = {}
        for child in psutil.Process().children(recursive=True):
            found[child.pid] = _command(child.pid)
        wanted = f"{MARK}={self.mark}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid() and wanted in _environment(entry):
                found[int(entry.name)] = _command(int(entry.name))
        return {pid: command for pid, command in found.items() if command != _GONE}

    def left(self) -> dict[str, str]:
        """What is there now and was not before, each with words for a message."""
        return {key: what for key, what in self._now().items() if key not in self._before}

    def check(self, seconds: float = 5.0) -> None:
        """Fail with what is left after so many seconds; returns as soon as nothing is."""
        until = time.monotonic() + seconds
        while left := self.left():
            gc.collect()  # an error that a test caught holds its frames, and what they own
            assert time.monotonic() < until, f"left after {seconds:g} s: {'; '.join(left.values())}"
            time.sleep(0.02)

    def _now(self) -> dict[str, str]:
        found = {f"process {pid}": f"process {pid} ({command})" for pid, command in self.processes().items()}
        found |= _descriptors()
        found |= _listeners(tuple(self.processes()))
        found |= _unix_sockets(self._folders)
        found |= {f"segment {e.name}": f"shared memory {e}" for e in _SHM.glob("*") if "enginebay" in e.name}
        for folder in self._folders:
            found |= {f"file {path}": f"file {path}" for path in folder.rglob("*")}
        return found


def _environment(entry: Path) -> bytes:
    try:
        return (entry / "environ").read_bytes()
    except OSError:
        return b""  # it has gone, or is another user's


_GONE = "it has gone meanwhile"


def _command(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"{process.status()}: {' '.join(process.cmdline())[:120] or process.name()}"
    except psutil.Error:
        return _GONE


def _descriptors() -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue  # the one that this loop reads with
        if not target.startswith("/proc/"):
            found[f"descriptor {entry.name} {target}"] = f"descriptor {entry.name} ({target})"
    return found


def _listeners(pids: Sequence[int]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pid in (os.getpid(), *pids):
        try:
            for one in psutil.Process(pid).net_connections(kind="inet"):
                if one.status == psutil.CONN_LISTEN:
                    found[f"listener {one.laddr}"] = f"process {pid} listens on {one.laddr.ip}:{one.laddr.port}"
        except psutil.Error:
            continue
    return found


def _unix_sockets(folders: Sequence[Path]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        path = line.split(maxsplit=7)[7:]
        if path and any(path[0].startswith(f"{folder}/") for folder in folders):
            found[f"socket {path[0]}"] = f"socket {path[0]}"
    return found
