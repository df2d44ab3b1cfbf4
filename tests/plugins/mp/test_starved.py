"""A worker that has no processor is slow, and nobody ends it for that."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from enginebay import LLM, SamplingParams
from support.census import Census
from support.fake_engines import Installed, install

BUSY = 8


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    """The fake runner as an installed plugin, in this process and in its workers."""
    for one in install(tmp_path, monkeypatch):
        for name, value in one.environ().items():
            monkeypatch.setenv(name, value)
        yield one


@contextmanager
def busy() -> Iterator[None]:
    """So many processes that want a processor all the time."""
    with ExitStack() as stack:
        for _ in range(BUSY):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)
        yield


@pytest.mark.parametrize("seconds", [2.0, pytest.param(60.0, marks=pytest.mark.soak)])
def test_beside_busy_processes_no_worker_is_ended(fake: Installed, census: Census, seconds: float) -> None:
    deadlines = {"heartbeat": 0.1, "step": 1.0}  # of its own time a step takes a third of it
    config = fake.config(burn_seconds=0.3) | {"executor": {"use": "mp"}, "deadlines": deadlines}
    with LLM(config=config) as llm, busy():
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert llm.generate("say:abc", SamplingParams(max_tokens=2))[0].text == "ab"
        said = llm.health()
        assert (llm.status()["generation"], [one.restarts for one in said.workers]) == ("0", [0])
    census.check()
