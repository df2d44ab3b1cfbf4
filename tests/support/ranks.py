"""Runs a function in several processes at once, as the ranks of one world that meet at a file.

``python -P -m support.ranks NAME RANK SIZE RENDEZVOUS OUT`` with the argument as JSON on stdin is one rank.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.repository import ROOT

__all__ = ["Ranks", "run_ranks"]


class Ranks:
    """The processes of one world; use it with ``with``, which leaves none of them behind."""

    def __init__(self, function: str, size: int, argument: Any, folder: Path) -> None:
        """``function``: ``"module:name"``, called with (rank, size, rendezvous, argument); its answer is JSON."""
        folder.mkdir(parents=True, exist_ok=True)
        self.outs = [folder / f"answer-{rank}.json" for rank in range(size)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.logs = [open(folder / f"log-{rank}.txt", "w+b") for rank in range(size)]  # noqa: SIM115  # closed in __exit__
        (folder / "argument.json").write_text(json.dumps(argument))
        self.processes = []
        for rank in range(size):
            argv = [sys.executable, "-P", "-m", "support.ranks", function, str(rank), str(size)]
            argv += [(folder / "store").as_uri(), str(self.outs[rank]), str(folder / "argument.json")]
            self.processes.append(
                subprocess.Popen(argv, env=environ, cwd=folder, stdout=self.logs[rank], stderr=subprocess.STDOUT)
            )

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for log in self.logs:
            log.close()

    def log(self, rank: int) -> str:
        """What the rank printed."""
        self.logs[rank].flush()
        return Path(self.logs[rank].name).read_text("utf-8", "replace")

    def answers(self, timeout: float) -> list[Any]:
        """Wait for all; what each answered, or an assertion error with what a failed one printed."""
        for rank, process in enumerate(self.processes):
            code = process.wait(timeout)
            assert code == 0, f"rank {rank} exited with {code}:\n{self.log(rank)[-4000:]}"
        return [json.loads(out.read_text()) for out in self.outs]


def run_ranks(function: str, size: int, argument: Any, folder: Path, timeout: float = 300) -> list[Any]:
    """Run the function on ``size`` ranks; their answers, by rank."""
    with Ranks(function, size, argument, folder) as ranks:
        return ranks.answers(timeout)


def _main() -> None:
    name, rank, size, rendezvous, out, argument = sys.argv[1:]
    module, _, function = name.partition(":")
    one = getattr(importlib.import_module(module), function)
    answer = one(int(rank), int(size), rendezvous, json.loads(Path(argument).read_text()))
    Path(out).write_text(json.dumps(answer))


if __name__ == "__main__":
    _main()
