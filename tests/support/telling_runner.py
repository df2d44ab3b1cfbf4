"""The kit's fake runner, that also writes down what its process was given: its environment and where it is."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import RunnerPlugin
from enginebay.testing import fakes
from enginebay.testing.fakes import FakeOptions, FakeRunner


class TellingRunner(FakeRunner):
    """Writes ``closed``.RANK when it loads."""

    def load_model(self) -> None:
        place = self.context.place
        told = {"environ": dict(os.environ), "node": place.node, "local_rank": place.local_rank, "path": sys.path}
        Path(f"{self.context.options.closed}.{place.rank}").write_text(json.dumps(told))
        super().load_model()


@hookimpl
def enginebay_register_runners() -> list[RunnerPlugin[FakeOptions]]:
    """The fake's descriptor with this runner in it."""
    return [replace(one, factory=TellingRunner) for one in fakes.enginebay_register_runners()]
