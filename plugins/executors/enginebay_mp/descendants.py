"""What a worker has started and left behind: found by the mark in its environment, and ended.

Decision. Descendants of a worker are ended with it: its process group at once, and whoever has left that (``setsid``)
by a mark of the worker's own, which stands in the environment of all that descend from it. Making the engine's process
a subreaper would find them too, but that process is often the user's own program, and would be handed every orphan of
every other library in it. What a descendant starts with an emptied environment in a session of its own is not found.
A process is signalled through a pidfd that was opened before its mark was read, so never one that took its number.
A violating change looks like: killing by name, by command line, or by a pid that was read a moment ago.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

__all__ = ["MARK", "end_marked"]

MARK: Final = "ENGINEBAY_WORKER"
"""The environment variable of the mark: the incarnation id, and what no other process has."""

_ROUNDS: Final = 5


def end_marked(mark: str) -> int:
    """SIGKILL every process that bears the mark; how many there were. Rounds, as one may be starting another."""
    entry = f"{MARK}={mark}".encode()
    found = 0
    for _ in range(_ROUNDS):
        ended = sum(_end(int(folder.name), entry) for folder in Path("/proc").iterdir() if folder.name.isdigit())
        if not ended:
            break
        found += ended
    return found


def _end(pid: int, entry: bytes) -> bool:
    if pid == os.getpid() or not _bears(pid, entry):
        return False
    with contextlib.suppress(OSError, AttributeError):  # it has ended meanwhile; or an old kernel, without pidfds
        descriptor = os.pidfd_open(pid)
        try:
            if _bears(pid, entry):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return True
        finally:
            os.close(descriptor)
    return False


def _bears(pid: int, entry: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry in file.read().split(b"\0")
    except OSError:  # another user's, or gone
        return False
