"""A Ray of our own: it is there while the engine runs, and nothing of it is left, however the engine ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginebay_ray.private import PrivateFolder
from support.census import Census
from support.fake_engines import Installed, install

PATIENCE = 120.0

ENGINE = """
import json, os, sys, time
from enginebay import LLM, SamplingParams

config = json.loads(sys.argv[1])
for life in (1, 2):
    llm = LLM(config)
    print(llm.generate("say:abc", SamplingParams(max_tokens=4))[0].text, flush=True)
    if life == 1:
        llm.close()
        print(os.environ.get("RAY_AUTH_TOKEN_PATH"), "RAY_AUTH_MODE" in os.environ, flush=True)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    yield from install(tmp_path, monkeypatch)


def test_nothing_is_left_of_it_after_a_stop_and_after_a_kill(fake: Installed, tmp_path: Path) -> None:  # X12, X13
    root = Path(tempfile.mkdtemp(prefix="eb-"))
    home = tmp_path / "home"
    home.mkdir()
    census = Census([root, home])
    options = {"env": ["PYTHONPATH"], "gpus_per_worker": 0}
    config = {**fake.config(), "executor": {"use": "ray", "options": options}}
    environ = {**fake.environ(), "HOME": str(home), "ENGINEBAY_RUN": str(root)}
    engine = subprocess.Popen(
        [sys.executable, "-P", "-c", ENGINE, json.dumps(config)],
        env=census.environment(environ),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert engine.stdout is not None
    try:
        # nothing of Ray's is printed among the answers, and the environment is as it was
        assert [engine.stdout.readline() for _ in range(4)] == ["abc\n", "None False\n", "abc\n", "ready\n"]
        assert [path.stat().st_mode & 0o777 for path in root.glob("*/ray/token")] == [0o600]
        assert not (home / ".ray").exists()
        assert len(census.processes()) > 3
        engine.send_signal(signal.SIGKILL)
    finally:
        engine.kill()
        engine.wait()
        engine.stdout.close()
    until = time.monotonic() + 20
    while census.processes() and time.monotonic() < until:
        time.sleep(0.05)
    assert census.processes() == {}
    # what the kill has left of the run folder is swept by whoever starts next
    sweep = "from enginebay.runfolder import RunFolder; RunFolder.make().close()"
    subprocess.run([sys.executable, "-P", "-c", sweep], env=environ, check=True, timeout=PATIENCE)
    census.check()
    root.rmdir()


def test_a_folder_whose_path_is_too_long_is_not_used(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    private = PrivateFolder(deep)
    assert private.path.parent == Path(tempfile.gettempdir())
    assert (private.path.stat().st_mode & 0o777, private.token.stat().st_mode & 0o777) == (0o700, 0o600)
    with private.environment():
        assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(private.token)
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ
    private.remove()
    assert not private.path.exists()


def test_its_processes_are_found_by_the_token_and_killed(tmp_path: Path) -> None:  # X13
    private = PrivateFolder(tmp_path)
    with private.environment():
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    other = subprocess.Popen(["sleep", "600"])
    while not private.processes():  # it is our own until its program runs
        time.sleep(0.001)
    assert private.processes() == [child.pid]
    reaped: list[int] = []
    waiter = threading.Thread(target=lambda: reaped.append(child.wait()))
    waiter.start()
    private.end_processes(0.0)
    waiter.join()
    assert reaped == [-signal.SIGKILL]
    assert other.poll() is None
    other.kill()
    other.wait()
    private.remove()
