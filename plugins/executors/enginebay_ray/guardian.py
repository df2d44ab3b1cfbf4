"""A small process beside a Ray of our own: when its engine has gone without a word, it ends that Ray and its folder.

It runs as a script, ``python -I -S guardian.py ENGINE FOLDER TOKEN``, on the standard library alone, in a process group
of its own, as a child of the engine's process (``ENGINE`` is its number). Ray ends its server when whoever started it
dies, but not the agents beside it, nor its files. An engine that stops in good order ends its guardian last.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["TOKEN_PATH", "guard", "kill", "processes_of"]

TOKEN_PATH: Final = "RAY_AUTH_TOKEN_PATH"  # noqa: S105  # a variable's name, no secret
_PROC: Final = Path("/proc")
_LOOK_AGAIN_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.05
_QUIET_SECONDS: Final = 0.5
"""Ray may be starting a process while it is killed: none may be found for so long."""
_LONGEST_SECONDS: Final = 30.0


def processes_of(folder: Path, token: Path) -> list[int]:
    """The living processes of the Ray in ``folder``, but for the one that asks.

    They have the token's path in their environment, and name the folder in their command line or descend from one that
    does: what the user starts beside the engine may have inherited the first, and is not meant. Ray's agents and
    workers write a title over both; they are known by it and by a file that they have open in the folder.
    """
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if pid != os.getpid() and _is_of(pid, folder, token)]


def kill(pid: int, folder: Path, token: Path) -> None:
    """SIGKILL to a process of that Ray, and never to another one that has come by its number meanwhile."""
    with contextlib.suppress(ProcessLookupError), _held(pid) as held:
        if _is_of(pid, folder, token):
            if held:
                signal.pidfd_send_signal(held[0], signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)


def guard(engine: int, folder: Path, token: Path) -> None:
    """Return when the process ``engine``, our parent, has gone, and with it its Ray and the folder."""
    with _held(engine) as watched:
        while os.getppid() == engine:  # a child gets another parent when its own has gone
            select.select(watched, [], [], _LOOK_AGAIN_SECONDS)
    until = time.monotonic() + _LONGEST_SECONDS
    last_seen = time.monotonic()
    while (now := time.monotonic()) < until and now - last_seen < _QUIET_SECONDS:
        for pid in processes_of(folder, token):
            kill(pid, folder, token)
            last_seen = now
        time.sleep(_POLL_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)  # whoever swept the dead engine's run folder may be at it, too


@contextlib.contextmanager
def _held(pid: int) -> Iterator[list[int]]:
    """The process's pidfd, in a list that is empty where there is none: an old kernel's, or of one that has gone."""
    try:
        held = [os.pidfd_open(pid)]
    except OSError:
        held = []
    try:
        yield held
    finally:
        for one in held:
            os.close(one)


def _is_of(pid: int, folder: Path, token: Path) -> bool:
    entry, within = _PROC / str(pid), os.fsencode(folder) + b"/"
    try:
        if entry.stat().st_uid != os.getuid():
            return False
        command = (entry / "cmdline").read_bytes()
        if command.startswith(b"ray::"):
            return any(path.startswith(within) for path in _open_files(entry))
        environment = (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it ended while we looked
    if f"{TOKEN_PATH}=".encode() + os.fsencode(token) not in environment:
        return False
    return within in command or any(variable.startswith(b"RAY_RAYLET_PID=") for variable in environment)


def _open_files(entry: Path) -> Iterator[bytes]:
    for descriptor in (entry / "fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed while we looked
            yield os.readlink(os.fsencode(descriptor))


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when its work is done, which is soon after the engine's end
    os.chdir("/")
    guard(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
