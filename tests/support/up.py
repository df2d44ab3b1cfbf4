"""``enginebay up`` in a process of its own, over the fake runner."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from enginebay.runfolder import RunFolder
from support.fake_engines import Installed

ENGINE = [
    sys.executable,
    "-P",
    "-c",
    "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); from enginebay.cli import main; main()",
]
"""The command line in a process that heeds a hangup, also when the tests run under nohup."""

SECONDS = 60.0
"""For what takes a second on a machine that is not busy."""


class Up:
    """A running ``enginebay up``."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        self.address = ""
        self.users: list[subprocess.Popen[str]] = []
        """Processes that use it; what is left of them is killed with it."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        """What it has said on standard error."""
        return self._log.read_text()

    def wait_until_ready(self) -> Up:
        assert self.process.stdout is not None
        self.address = self.address or self.process.stdout.readline().strip()
        assert self.address, f"it ended with {self.process.wait(SECONDS)}: {self.said}"
        return self

    def wait_until_said(self, words: str) -> None:
        deadline = time.monotonic() + SECONDS
        while words not in self.said:
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)

    def wait(self) -> int:
        """The exit code."""
        return self.process.wait(SECONDS)


@contextlib.contextmanager
def up(
    fake: Installed, folder: Path, *arguments: str, environ: Mapping[str, str] | None = None, **options: object
) -> Iterator[Up]:
    """Started, and perhaps not ready yet; ``options`` are the fake runner's. What is left of it is killed."""
    log = folder / f"up-{len(list(folder.glob('up-*')))}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*ENGINE, "up", *fake.arguments(**options), *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env={**fake.environ(), **(environ or {})},
        )
    engine = Up(process, log)
    try:
        yield engine
    finally:
        for one in (process, *engine.users):
            one.kill()
            one.wait(SECONDS)
            assert one.stdout is not None
            one.stdout.close()
        RunFolder.make().close()  # as the next start does
