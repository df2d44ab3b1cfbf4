"""What ends an actor's process without Ray, and what is never signalled: without Ray."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from enginebay.messages import WorkerInfo
from enginebay.runtime import pid_space
from enginebay_ray.held import HeldProcesses

PATIENCE = 60.0

LAST_CALL = """
import os, threading
import msgspec
from enginebay_ray import actor

has_said, leave = threading.Event(), os._exit
os._exit = lambda code: has_said.wait() and leave(code)
actor._LONGEST_AFTERWARDS = 0.0
start = actor.ActorStart(payload=b"no payload", ticket=b"", environment={}, address="", patience=0.0)
print("DamagedMessage" in actor.RayWorker().serve(msgspec.msgpack.encode(start)), flush=True)
has_said.set()
threading.Event().wait()
"""

Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process with this title, that waits."""
    made: list[subprocess.Popen[str]] = []

    def start(title: str) -> subprocess.Popen[str]:
        command = ["bash", "-c", f"exec -a '{title}' bash -c 'echo; read'"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        made.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        return child

    yield start
    for child in made:
        child.kill()
        child.communicate()


def said_by(child: subprocess.Popen[str], space: str) -> WorkerInfo:
    return WorkerInfo(rank=0, local_rank=0, incarnation="one", host="here", pid=child.pid, space=space)


def test_what_is_held_is_killed_also_when_it_is_stopped(start: Start) -> None:  # X13
    held, worker = HeldProcesses(), start("ray::RayWorker.serve")
    worker.send_signal(signal.SIGSTOP)
    held.take(said_by(worker, pid_space()))
    held.kill()
    assert worker.wait(PATIENCE) == -signal.SIGKILL
    held.kill()


def test_no_other_process_is_signalled(start: Start) -> None:  # X13
    held, other, elsewhere, ended = HeldProcesses(), start("bash"), start("ray::RayWorker"), start("ray::RayWorker")
    ended.communicate("\n")
    held.take(said_by(ended, pid_space()))
    held.take(said_by(other, pid_space()))
    held.take(said_by(elsewhere, f"not {pid_space()}"))
    held.take(said_by(elsewhere, ""))
    held.kill()
    assert (other.poll(), elsewhere.poll(), ended.poll()) == (None, None, 0)


def test_an_actor_whose_line_has_closed_ends_by_itself() -> None:  # X12
    done = subprocess.run(
        [sys.executable, "-P", "-c", LAST_CALL], stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n")
