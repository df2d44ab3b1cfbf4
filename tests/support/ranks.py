"""Runs a function in several processes at once, as the ranks of one world that meet at a file.

A start of torch takes longer than what most of them do. So one process, the herd, imports it for a module of tests, and
forks each rank: ``python -P -m support.ranks MODULE …``, with a line of JSON on stdin for each world.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.repository import ROOT

__all__ = ["Herd", "Ranks"]

_PAUSE = 0.01


class Herd:
    """The process that forks ranks; use it with ``with``, in a fixture of a module's scope."""

    def __init__(self, *modules: str) -> None:
        """``modules``: what it imports before it forks anything; they start no threads."""
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        argv = [sys.executable, "-P", "-m", "support.ranks", *modules]
        self._process = subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE, text=True)

    def __enter__(self) -> Herd:
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # it ends what it has forked, and itself
        assert self._process.wait(60) == 0

    @contextmanager
    def ranks(self, function: str, size: int, argument: Any, folder: Path) -> Iterator[Ranks]:
        """The ranks of one world, none of which is left afterwards.

        ``function``: ``"module:name"``, called with (rank, size, rendezvous, argument); its answer is JSON.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "argument.json").write_text(json.dumps(argument))
        self._say({"run": function, "size": size, "folder": str(folder)})
        ranks = Ranks(self._process, folder, size)
        try:
            yield ranks
        finally:
            self._say({"end": str(folder)})
            for rank in range(size):
                ranks.wait(rank, 60)

    def run(self, function: str, size: int, argument: Any, folder: Path, timeout: float = 300) -> list[Any]:
        """What each rank of a world answers, by rank. An assertion error has what one that failed printed."""
        with self.ranks(function, size, argument, folder) as ranks:
            return [ranks.answer(rank, timeout) for rank in range(size)]

    def _say(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)


class Ranks:
    """The processes of one world."""

    def __init__(self, herd: subprocess.Popen[str], folder: Path, size: int) -> None:
        self._herd, self._folder, self.size = herd, folder, size

    def wait(self, rank: int, timeout: float) -> int:
        """The exit code of a rank, or minus the number of the signal that ended it."""
        deadline, code = time.monotonic() + timeout, self._folder / f"code-{rank}"
        while not code.exists():
            assert self._herd.poll() is None, "the herd has ended"
            assert time.monotonic() < deadline, f"rank {rank} goes on:\n{self.log(rank)}"
            time.sleep(_PAUSE)
        return int(code.read_text())

    def answer(self, rank: int, timeout: float) -> Any:
        """What the rank's function returned."""
        code = self.wait(rank, timeout)
        assert code == 0, f"rank {rank} exited with {code}:\n{self.log(rank)[-4000:]}"
        return json.loads((self._folder / f"answer-{rank}.json").read_text())

    def log(self, rank: int) -> str:
        """What the rank has printed."""
        return (self._folder / f"log-{rank}.txt").read_text("utf-8", "replace")


def _be_rank(function: str, rank: int, size: int, folder: Path) -> int:
    log = os.open(folder / f"log-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(0)
    try:
        module, _, name = function.partition(":")
        argument = json.loads((folder / "argument.json").read_text())
        answer = getattr(importlib.import_module(module), name)(rank, size, (folder / "store").as_uri(), argument)
        (folder / f"answer-{rank}.json").write_text(json.dumps(answer))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _main(modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    running: dict[int, tuple[str, int]] = {}
    rest = b""
    while True:
        if select.select([0], [], [], _PAUSE)[0]:
            if not (read := os.read(0, 1 << 16)):
                break
            *lines, rest = (rest + read).split(b"\n")
            for order in map(json.loads, lines):
                if "end" in order:
                    _end(running, order["end"])
                for rank in range(order.get("size", 0)):
                    pid = os.fork()
                    if pid == 0:
                        code = _be_rank(order["run"], rank, order["size"], Path(order["folder"]))
                        sys.stdout.flush()
                        sys.stderr.flush()
                        os._exit(code)
                    running[pid] = (order["folder"], rank)
        _reap(running, os.WNOHANG)
    for folder in {folder for folder, _ in running.values()}:
        _end(running, folder)
    while running:
        _reap(running, 0)


def _end(running: dict[int, tuple[str, int]], folder: str) -> None:
    for pid, (own, _) in running.items():
        if own == folder:
            os.kill(pid, signal.SIGKILL)


def _reap(running: dict[int, tuple[str, int]], flags: int) -> None:
    while running:
        pid, status = os.waitpid(-1, flags)
        if pid == 0:
            return
        folder, rank = running.pop(pid)
        path = Path(folder) / f"code-{rank}"
        path.with_suffix(".new").write_text(str(os.waitstatus_to_exitcode(status)))
        path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    _main(sys.argv[1:])
