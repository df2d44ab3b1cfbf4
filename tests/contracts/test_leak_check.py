"""The check for what a test leaves behind finds it: a child, a thread, a shared-memory file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.repository import ROOT

LEAKS = """
import os, pathlib, subprocess, threading, time
import pytest

held = []

@pytest.fixture(scope="module", autouse=True)
def clean_up():
    yield
    for process in held:
        process.kill()
        process.wait()
    for file in pathlib.Path("/dev/shm").glob(f"enginebay-leak-{os.getpid()}"):
        file.unlink()

def test_process():
    held.append(subprocess.Popen(["sleep", "60"]))

def test_thread():
    threading.Thread(name="enginebay-x", target=time.sleep, args=(1,), daemon=True).start()

def test_file():
    open(f"/dev/shm/enginebay-leak-{os.getpid()}", "w").close()

def test_clean():
    done = threading.Thread(target=time.sleep, args=(0.05,))
    done.start()
    subprocess.run(["true"])
"""


def test_each_leak_is_an_error_that_names_it(tmp_path: Path) -> None:
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    assert "GRACE = 2.0" in conftest
    (tmp_path / "conftest.py").write_text(conftest.replace("GRACE = 2.0", "GRACE = 0.3"))
    (tmp_path / "test_leaks.py").write_text(LEAKS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rE", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    errors = sorted(line for line in done.stdout.splitlines() if line.startswith("ERROR"))
    assert [line.split(" - ")[0] for line in errors] == [
        f"ERROR test_leaks.py::test_{name}" for name in ("file", "process", "thread")
    ]
    assert "left behind: file /dev/shm/enginebay-leak-" in done.stdout
    assert "(sleep, sleeping)" in done.stdout
    assert "left behind: thread enginebay-x (daemon)" in done.stdout
    assert "4 passed, 3 errors" in done.stdout
