"""What each part of the faults does by itself: to processes, memory, answers and time."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import psutil
import pytest

from enginebay.errors import ConfigError
from enginebay.messages import RankReply, Replies, WorkerInfo
from enginebay.runtime import system_runtime
from enginebay.testing.faults.alarms import Alarms
from enginebay.testing.faults.answers import Answers
from enginebay.testing.faults.shm import fill_shm
from enginebay.testing.faults.victims import Victims
from support.clock import FakeClock, fake_runtime
from support.served import eventually

REPLIES = Replies(generation=2, call_id=9, replies=(RankReply(rank=0, payload=b"a"), RankReply(rank=1, payload=b"b")))


def info(pid: int, host: str | None = None) -> WorkerInfo:
    return WorkerInfo(rank=1, local_rank=1, incarnation="i", host=host or socket.gethostname(), pid=pid)


@pytest.fixture
def victim() -> Iterator[psutil.Popen]:
    """A process to harm."""
    process = psutil.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    yield process
    if process.poll() is None:
        process.kill()
    process.wait(60)


def test_a_process_is_stopped_goes_on_and_is_killed(victim: psutil.Popen) -> None:
    victims = Victims([info(victim.pid)])
    assert victims.stop(1)
    eventually(lambda: victim.status() == psutil.STATUS_STOPPED)
    assert victims.go_on(1)
    eventually(lambda: victim.status() != psutil.STATUS_STOPPED)
    assert victims.kill(1)
    assert victim.wait(60) == -signal.SIGKILL
    assert not victims.kill(1)  # nobody else is hit, whoever has its number now
    assert not victims.stop(0)
    victims.close()
    victims.close()
    assert not victims.kill(1)


@pytest.mark.parametrize(
    ("worker", "where"), [(info(os.getpid()), "in the engine's process"), (info(1, "elsewhere"), "on host elsewhere")]
)
def test_a_process_that_is_not_a_worker_of_this_machine_is_refused(worker: WorkerInfo, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Victims([worker])
    assert str(caught.value) == (
        f"[extensions.faults] harms processes of this machine, and rank 1 runs {where}: take the kinds kill, stop and "
        "exhaust_memory out, or set [executor] use to one with worker processes on this machine"
    )


def test_memory_is_exhausted_within_its_bound_and_given_back() -> None:
    code = (
        "import resource; from pathlib import Path\n"
        "from enginebay.testing.faults.in_worker import exhaust\n"
        "def most(): return int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])\n"
        "before, had = resource.getrlimit(resource.RLIMIT_AS), most()\n"
        "try: exhaust(32 << 20)\n"
        "except MemoryError as error: print(error)\n"
        "assert resource.getrlimit(resource.RLIMIT_AS) == before\n"
        "print(most() - had)\n"
        "bytearray(100 << 20)  # there is room again\n"
    )
    said = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120)
    words, risen = said.stdout.splitlines()
    told = re.fullmatch(r"the extension 'faults' has taken (\d+) MiB, and there is no more", words)
    assert told is not None
    assert 25 <= int(told[1]) <= 32  # the interpreter may have had some of it
    assert int(risen) << 10 <= 34 << 20


def test_a_limit_of_the_process_that_is_nearer_counts() -> None:
    """A soft limit is kept to: it is never raised."""
    code = (
        "import resource; from pathlib import Path\n"
        "from enginebay.testing.faults.in_worker import exhaust\n"
        "now = int(Path('/proc/self/statm').read_text().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + (20 << 20), resource.RLIM_INFINITY))\n"
        "try: exhaust(1 << 30)\n"
        "except MemoryError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert 5 < int(said.stdout.split("has taken ")[1].split()[0]) <= 20


def nameless() -> list[int]:
    """Our descriptors of files in /dev/shm that have no name."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the one of this very look
        if target.startswith("/dev/shm/") and target.endswith("(deleted)"):
            found.append(int(name))
    return found


def test_shared_memory_is_filled_without_a_name_and_given_back() -> None:
    taken, give_back = fill_shm(2 << 20)
    assert taken == 2 << 20
    (mine,) = nameless()
    assert os.fstat(mine).st_blocks * 512 >= 2 << 20
    give_back()
    assert nameless() == []


def test_shared_memory_is_filled_to_its_end_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstatvfs

    class Full:
        f_bavail, f_frsize = 3, 4096

    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: real(descriptor) and Full())
    taken, give_back = fill_shm(1 << 40)
    give_back()
    assert taken == 3 * 4096


def test_shared_memory_that_is_full_at_the_last_moment_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        fill_shm(1 << 20)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_failed_call_keeps_the_other_ranks_answers() -> None:
    inner: Future[Replies] = Future()
    outer = Answers().fail(inner, 1, "execute_model")
    assert not outer.done()
    inner.set_result(REPLIES)
    zero, one = outer.result().replies
    assert (zero.payload, one.payload) == (b"a", b"")
    assert one.failure is not None
    assert (one.failure.rank, one.failure.phase, one.failure.error_type) == (1, "execute_model", "InjectedFault")


def test_a_dropped_answer_comes_when_all_is_over() -> None:
    answers, inner = Answers(), Future[Replies]()
    outer = answers.drop(inner, 1)
    inner.set_result(REPLIES)
    assert not outer.done()
    answers.end()
    failure = outer.result().replies[1].failure
    assert failure is not None
    assert (failure.kind, failure.message) == (
        "EngineDead",
        "the executor was stopped; the extension 'faults' dropped the answer",
    )
    answers.end()


def test_a_delayed_answer_is_delivered_by_whoever_is_given_it() -> None:
    later: list[Callable[[], None]] = []
    inner: Future[Replies] = Future()
    outer = Answers().delay(inner, later.append)
    inner.set_result(REPLIES)
    assert not outer.done()
    later.pop()()
    assert outer.result() is REPLIES


def test_an_error_and_a_cancelled_future_pass() -> None:
    broken: Future[Replies] = Future()
    failed = Answers().fail(broken, 0, "load_model")
    broken.set_exception(ValueError("its own"))
    with pytest.raises(ValueError, match="its own"):
        failed.result()
    inner: Future[Replies] = Future()
    outer = Answers().fail(inner, 0, "load_model")
    outer.cancel()
    inner.set_result(REPLIES)


def test_alarms_go_off_in_their_order() -> None:
    clock, told, done = FakeClock(), list[int](), threading.Event()
    alarms = Alarms(fake_runtime(clock))
    with_all = [lambda n=n: told.append(n) for n in (3, 1, 2)]  # type: ignore[misc]  # a default binds the loop's value
    lock = alarms._lock
    with lock:  # all are there before the first goes off
        for act, when in zip(with_all, (130.0, 110.0, 120.0), strict=True):
            alarms.at(when, act)
        alarms.at(140.0, done.set)
    assert done.wait(60)
    assert told == [1, 2, 3]
    assert clock.time >= 140.0


def test_an_alarm_that_fails_is_told_of_and_keeps_no_other(caplog: pytest.LogCaptureFixture) -> None:
    alarms, done = Alarms(fake_runtime(FakeClock())), threading.Event()
    with alarms._lock:
        alarms.at(101.0, lambda: 1 // 0)
        alarms.at(102.0, done.set)
    assert done.wait(60)
    assert caplog.messages == ["a fault could not be injected, or undone"]


def test_closing_does_at_once_what_is_left_and_ends_the_thread() -> None:
    told: list[str] = []
    runtime = system_runtime(1)
    alarms = Alarms(runtime)
    alarms.at(runtime.clock.now() + 9999, lambda: told.append("late"))
    alarms.at(runtime.clock.now() + 999, lambda: told.append("early"))
    alarms.close()
    assert told == ["early", "late"]
    eventually(lambda: not any(one.name == "enginebay-faults" for one in threading.enumerate()))
    alarms.at(runtime.clock.now(), lambda: told.append("again"))  # it can be used after it
    eventually(lambda: told[-1] == "again")
