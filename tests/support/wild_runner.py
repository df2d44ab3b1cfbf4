"""The kit's fake runner, and what real ones do by accident: children left behind, floods of lines, sudden ends.

Tests copy this file onto the path of the workers. ``extra["kit"]`` may ask for: ``b"child"`` (a process that has left
the worker's session; its pid goes into the file ``closed``.child), ``b"lines"``, ``b"gone"`` (ends with exit code 0).
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from enginebay.errors import CapabilityError, ModelError
from enginebay.hookspecs import hookimpl
from enginebay.interfaces import RunnerPlugin
from enginebay.testing import fakes
from enginebay.testing.fakes import FakeOptions, FakeRunner

ERRORS: dict[str, type[Exception]] = {
    "CapabilityError": CapabilityError,
    "MemoryError": MemoryError,
    "ModelError": ModelError,
}

LINES = ["the weights are warm", "\x1b[31mred\x1b[0m and \u202ereversed", "50%\r100%", "x" * 9000]


class WildRunner(FakeRunner):
    """See the module."""

    def load_model(self) -> None:
        kind, _, said = self.context.options.fail_load.partition(": ")
        if self.context.options.fail_rank in (-1, self.context.place.rank) and kind in ERRORS:
            raise ERRORS[kind](said)
        super().load_model()

    def _misbehave(self, asked: bytes) -> None:
        how, _, rank = asked.partition(b"@")
        if rank and int(rank) != self.context.place.rank:
            return
        if how == b"child":
            child = subprocess.Popen(
                [sys.executable, "-c", "import time; time.sleep(600)"],
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            Path(f"{self.context.options.closed}.child").write_text(str(child.pid))
        elif how == b"lines":
            for line in LINES:
                print(line, file=sys.stderr, flush=True)
        elif how == b"gone":
            os._exit(0)
        else:
            super()._misbehave(asked)


@hookimpl
def enginebay_register_runners() -> list[RunnerPlugin[FakeOptions]]:
    """The fake's descriptor with this runner in it."""
    return [replace(one, factory=WildRunner) for one in fakes.enginebay_register_runners()]
