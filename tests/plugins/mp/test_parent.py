"""The workers' parent dies, leaves, or drops them: no process stays, whatever state it is in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from enginebay.testing._executor_driver import is_there
from plugins.mp.conftest import Drive
from support.census import Census
from support.forks import in_a_fork

PARENT = """
import os, signal, sys, threading
from pathlib import Path
from enginebay.testing._executor_driver import ExecutorDriver

driver = ExecutorDriver("mp", Path(sys.argv[1]), world_size=2)
driver.ready()
driver.submit(driver.next_step(b"hold@1")[0])
driver.run_folder.close()  # what a killed engine leaves of it, the next one removes: that is not the subject here
print(*(worker.pid for worker in driver.workers), flush=True)
HOW
"""


def run(tmp_path: Path, how: str, census: Census) -> tuple[subprocess.Popen[str], list[int]]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.replace("HOW", how), str(tmp_path / "parent")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=census.environment(),
    )
    assert parent.stdout is not None
    return parent, [int(pid) for pid in parent.stdout.readline().split()]


@pytest.mark.parametrize("how", ["killed", "killed with a stopped worker", "interrupted", "leaves", "forgets"])
def test_no_worker_outlives_its_parent(offered: Path, census: Census, tmp_path: Path, how: str) -> None:  # X12, X13
    body = {"leaves": "", "forgets": "del driver; import gc; gc.collect(); threading.Event().wait()"}.get(
        how, "threading.Event().wait()"
    )
    parent, workers = run(tmp_path, body, census)
    try:
        assert len(workers) == 2
        if how == "killed with a stopped worker":
            os.kill(workers[1], signal.SIGSTOP)
        elif how == "interrupted":
            os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: to all of the group
        elif how == "forgets":
            for worker in workers:
                subprocess.run([sys.executable, "-c", WAIT, str(worker)], timeout=60, check=True)
        if how in ("interrupted", "leaves"):
            parent.wait(60)
    finally:
        parent.kill()
        parent.communicate(timeout=60)
    census.check(seconds=20.0)


WAIT = """
import os, sys, time
for _ in range(5000):
    try:
        os.kill(int(sys.argv[1]), 0)
    except ProcessLookupError:
        sys.exit(0)
    time.sleep(0.01)
sys.exit(1)
"""


def test_dropping_the_last_reference_reaps(drive: Drive) -> None:  # X13
    driver = drive()
    driver.ready()
    pids = [worker.pid for worker in driver.workers]
    driver.executor = None
    driver.wait_until(lambda: not any(is_there(pid) for pid in pids), "a worker is there")


def test_a_fork_of_the_parent_leaves_the_workers_alone(drive: Drive) -> None:
    driver = drive(1)
    driver.ready()
    in_a_fork(lambda: driver.stop(seconds=0.1))  # whatever is dropped or ended there is not its own
    driver.run_step()
