"""What a worker's process costs and holds at shared rings, and how little harm it can do there."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from support.rings import ECHO, SLEEPS, SMALL, collect, echoed, rings, until

CHILD = """\
import os
for fd in range(3, 1000):
    try:
        print(os.readlink(f"/proc/self/fd/{fd}"), end=" ")
    except OSError:
        pass
print(".")
"""


def test_what_a_worker_starts_does_not_hold_its_descriptors() -> None:
    code = f"""\
import subprocess
child = {CHILD!r}
print(subprocess.run([sys.executable, "-c", child], close_fds=False, capture_output=True, text=True).stdout, flush=True)
"""
    with rings(code) as made:
        out = made.workers[0].stdout
        assert out is not None
        line = out.readline()
        assert line.endswith(".\n")
        assert "eventfd" not in line
        assert "memfd" not in line


def test_a_worker_cannot_write_to_the_engines_memory() -> None:
    code = """\
import mmap
for fd, flags in ((end._ticket.engine_memory, os.O_RDWR), (end._ticket.worker_memory, os.O_RDWR)):
    again = os.open(f"/proc/self/fd/{fd}", flags)
    for act in (lambda: mmap.mmap(again, 4096), lambda: os.pwrite(again, b"x", 0), lambda: os.ftruncate(again, 0)):
        try:
            act()
            print("done", flush=True)
        except OSError as error:
            print(error.strerror, flush=True)
"""
    with rings(code) as made:
        out = made.workers[0].stdout
        assert out is not None
        no = "Operation not permitted\n"
        assert [out.readline() for _ in range(6)] == [no, no, no, "done\n", "done\n", no]


@pytest.mark.parametrize(
    ("head", "tail", "said"),
    [
        (1 << 60, 0, "its reply ring is damaged: no record can be there"),
        (0, 1000, "it says that it has read 1000 slots of 8"),
    ],
)
def test_a_rank_that_scribbles_over_its_memory_is_lost_and_the_others_go_on(head: int, tail: int, said: str) -> None:
    code = f"end._own_words[24] = {tail}\nend._own_words[0] = {head}\nos.eventfd_write(end._ticket.replies_bell, 1)\n"
    with rings({0: code + SLEEPS, 1: ECHO}, (0, 1), **SMALL) as made:
        out = made.workers[0].stdout
        assert out is not None
        assert out.readline() == "up\n"
        assert echoed(made.end, 20) == [b"%d" % number for number in range(20)]
        assert list(made.end.lost) == [0]
        assert made.end.lost[0].startswith(said)


def test_a_worker_that_writes_without_end_does_not_keep_the_engine() -> None:
    code = "while True: end.reply(1, 1, b'')\n"
    with rings({0: code, 1: ECHO}, (0, 1), **SMALL) as made:
        collect(made.end, 1)
        made.end.send(b"x", (1,))
        until(lambda: any(rank == 1 for rank, _ in made.end.take_replies()))


CLOSES = """\
import os, sys
from enginebay.transport.shared import EngineEnd
closed = [int(number) for number in sys.argv[1]]
for number in closed:
    os.close(number)
end = EngineEnd.create([0, 1])
ours = [*end.ticket(0)[1], *end.ticket(1)[1], *(pipe := os.pipe())]
for number in pipe:
    os.close(number)
end.close()
open_again = [number for number in closed if os.path.exists(f"/proc/self/fd/{number}")]
os._exit(0 if min(ours) > 2 and not open_again else 1)
"""


@pytest.mark.parametrize("closed", ["0", "1", "12", "012"])
def test_what_a_worker_inherits_is_never_a_standard_descriptor(closed: str) -> None:
    assert subprocess.run([sys.executable, "-P", "-c", CLOSES, closed], timeout=60).returncode == 0


def test_an_idle_worker_uses_no_cpu() -> None:  # X7
    with rings("print('up', flush=True)\n" + ECHO) as made:
        out = made.workers[0].stdout
        assert out is not None
        assert out.readline() == "up\n"
        made.end.send(b"x")
        collect(made.end, 1)
        process = psutil.Process(made.workers[0].pid)
        until(lambda: process.status() == psutil.STATUS_SLEEPING)
        before = process.num_ctx_switches().voluntary
        time.sleep(0.5)
        assert process.num_ctx_switches().voluntary == before  # it was not even woken
        assert process.status() == psutil.STATUS_SLEEPING


def test_nothing_is_left() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with rings(ECHO, (0, 1, 2)) as made:
        made.end.send(b"x")
        collect(made.end, 3)
    assert set(os.listdir("/proc/self/fd")) == before
    with open("/proc/self/maps") as file:
        assert "enginebay-the broadcast ring" not in file.read()
