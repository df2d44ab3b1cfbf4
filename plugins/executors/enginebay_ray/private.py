"""What a Ray of our own leaves on the machine, and how all of it is found again: its folder, its token, its processes.

Ray listens on all interfaces. A Ray of ours lets in only who has a token that it reads from a file of mode 0600; the
path of that file is in the environment that its processes were started with, which marks them as ours.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from enginebay.runtime import Process, Spawner
from enginebay_ray import guardian

__all__ = ["PrivateFolder"]

_LONGEST_SOCKET: Final = "/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store"
_MAX_SOCKET_PATH: Final = 107
_MODE: Final = "RAY_AUTH_MODE"
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
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_hex(32))

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """While Ray is started, this process's environment names the token; only this, never the token itself."""
        before = {name: os.environ.get(name) for name in (_MODE, guardian.TOKEN_PATH)}
        os.environ[_MODE], os.environ[guardian.TOKEN_PATH] = "token", str(self.token)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def guard(self, spawner: Spawner) -> Process:
        """Start a process that ends this Ray when ours is killed; end it when there is no more to guard."""
        script = [sys.executable, "-I", "-S", guardian.__file__]
        with open(os.devnull, "w", encoding="utf-8") as nothing:
            return spawner.worker(
                [*script, str(os.getpid()), str(self.path), str(self.token)], env=os.environ, output=nothing.fileno()
            )

    def processes(self) -> list[int]:
        """The living processes of this Ray, but for ours and the guardian."""
        return guardian.processes_of(self.path, self.token)

    def is_served(self) -> bool:
        """Whether the server of this Ray, without which the others are of no use, is running."""
        for pid in self.processes():
            with contextlib.suppress(OSError):  # it ended while we looked
                if b"/gcs_server\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return True
        return False

    def end_processes(self, patience: float) -> None:
        """Return when all have ended: after ``patience`` seconds they are killed."""
        until = time.monotonic() + patience
        while alive := self.processes():
            if time.monotonic() >= until:
                for pid in alive:
                    guardian.kill(pid, self.path, self.token)
            time.sleep(_POLL_SECONDS)

    def remove(self) -> None:
        """The folder and all in it."""
        shutil.rmtree(self.path, ignore_errors=True)  # a process that is being killed may still write its log
        shutil.rmtree(self.path, ignore_errors=True)
