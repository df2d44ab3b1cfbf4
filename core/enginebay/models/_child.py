"""Run a conversion in a child process with a memory limit and a deadline, and show how far it is."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from enginebay.errors import ModelError

_STALL = 300.0  # seconds without a sign of progress
_MEMORY_BASE = 4 << 30
_MEMORY_FACTOR = 4  # of the file's size; address space, so the mapped file counts
_MAX_LINE = 1 << 20
_LAST_MOMENT = 5.0  # seconds


def convert_in_child(
    path: Path, folder: Path, dtype: str, on_progress: Callable[[int, int], None], *, lock_fd: int
) -> None:
    """Convert ``path`` into ``folder``; returns when every file is on the disk.

    The child dies with this process, and holds ``lock_fd`` until it is gone. Raises ``ModelError``.
    """
    memory = _MEMORY_BASE + _MEMORY_FACTOR * path.stat().st_size
    request = {"path": str(path), "folder": str(folder), "dtype": dtype, "memory": memory, "parent": os.getpid()}
    environment = os.environ | {
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }  # no address space for idle threads
    with tempfile.TemporaryFile() as words:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "enginebay.models._convert", json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=words,
            env=environment,
            pass_fds=(lock_fd,),
        )
        assert child.stdout is not None
        try:
            finished = _follow(child.stdout.fileno(), path, on_progress)
            if not finished:
                _wait(child)
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
        if not finished:
            words.seek(0)
            raise ModelError(_epitaph(path, child.returncode, words.read(_MAX_LINE).decode(errors="replace")))


def _wait(child: subprocess.Popen[bytes]) -> None:
    """Let a child that closed its report end by itself, so that its exit code is its own."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_LAST_MOMENT)


def _follow(fd: int, path: Path, on_progress: Callable[[int, int], None]) -> bool:
    """Read the child's reports to their end; whether it said that it finished."""
    pending = b""
    deadline = time.monotonic() + _STALL
    while True:
        readable, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            raise ModelError(f"converting {path} made no progress for {_STALL:.0f} s and was stopped")
        data = os.read(fd, 65536)
        if not data or len(pending) > _MAX_LINE:
            return False
        deadline = time.monotonic() + _STALL
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            said: dict[str, Any] = json.loads(line)
            if "error" in said:
                raise ModelError(str(said["error"]))
            if "finished" in said:
                return True
            on_progress(int(said["done"]), int(said["total"]))


def _epitaph(path: Path, code: int, last_words: str) -> str:
    """One line on a child that ended without a report."""
    words = last_words.strip().splitlines()
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}" + (" (out of memory?)" if code == -signal.SIGKILL else "")
    else:
        how = f"ended with code {code}" + (f": {words[-1]}" if words else "")
    return f"converting {path} failed: the process that did it {how}"
