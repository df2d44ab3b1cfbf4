"""What a Ray of our own leaves on the machine, and how all of it is found again: its folder, its token, its processes.

Ray listens on all interfaces. A Ray of ours lets in only who has a token that it reads from a file of mode 0600; the
path of that file is in the environment of each of its processes, which marks them as ours.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["PrivateFolder"]

_LONGEST_SOCKET: Final = "/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store"
_MAX_SOCKET_PATH: Final = 107
_MODE, _PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"
_POLL_SECONDS: Final = 0.05


class PrivateFolder:
    """A folder for one Ray of our own, in ``parent`` or, where that makes its sockets' paths too long, among temporary
    files; mode 0700, removed by ``remove``."""

    def __init__(self, parent: Path) -> None:
        path = parent / "ray"
        if len(os.fsencode(path)) + len(_LONGEST_SOCKET) > _MAX_SOCKET_PATH:
            self.path = Path(tempfile.mkdtemp(prefix="enginebay-ray-"))
        else:
            path.mkdir(mode=0o700)
            self.path = path
        self.token = self.path / "token"
        descriptor = os.open(self.token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """While Ray runs, this process's environment names the token; only this, never the token itself."""
        before = {name: os.environ.get(name) for name in (_MODE, _PATH)}
        os.environ[_MODE], os.environ[_PATH] = "token", str(self.token)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def processes(self) -> list[int]:
        """The living processes of this Ray, but for our own."""
        mark = f"{_PATH}={self.token}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):  # it ended while we looked, or is not ours to look at
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def end_processes(self, patience: float) -> None:
        """Return when all have ended: after ``patience`` seconds they are killed."""
        until = time.monotonic() + patience
        while alive := self.processes():
            if time.monotonic() >= until:
                for pid in alive:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)

    def remove(self) -> None:
        """The folder and all in it."""
        shutil.rmtree(self.path, ignore_errors=True)  # a process that is being killed may still write its log
        shutil.rmtree(self.path, ignore_errors=True)
