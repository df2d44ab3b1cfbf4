"""Worker processes at the other end of shared rings, for tests of the rings."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from enginebay.transport.shared import EngineEnd, WorkerEnd
from enginebay.transport.shared_layout import Ticket

HEAD = """\
import hashlib, os, sys, time
from enginebay.transport.shared import WorkerEnd
end = WorkerEnd.attach(bytes.fromhex(sys.argv[1]))
"""
ECHO = """\
while (frame := end.receive(None)) is not None:
    end.reply(1, end.rank, frame)
"""


@dataclass
class Rings:
    """An engine's end, and the processes of its workers by rank."""

    end: EngineEnd
    workers: dict[int, subprocess.Popen[str]]


def attach_here(end: EngineEnd, rank: int) -> WorkerEnd:
    """A worker's end in this process, with descriptors of its own as in a process of its own."""
    ticket = Ticket.decode(end.ticket(rank)[0])
    names = ("engine_memory", "worker_memory", "own_bell", "replies_bell", "room_bell")
    return WorkerEnd.attach(msgspec.structs.replace(ticket, **{n: os.dup(getattr(ticket, n)) for n in names}).encode())


def spawn(
    end: EngineEnd, rank: int, code: str, *, pass_fds: Sequence[int] = (), args: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """A process that runs ``code`` with ``end``, a ``WorkerEnd``; its stdout is ours to read."""
    ticket, fds = end.ticket(rank)
    return subprocess.Popen(
        [sys.executable, "-P", "-c", HEAD + code, ticket.hex(), *args],
        pass_fds=(*fds, *pass_fds),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def rings(code: str | dict[int, str], ranks: Sequence[int] = (0,), **sizes: int) -> Iterator[Rings]:
    """Rings to ``ranks``, with a process for each that runs ``code``; none is left behind."""
    end = EngineEnd.create(ranks, **sizes)
    made = Rings(end, {})
    try:
        for rank in ranks:
            made.workers[rank] = spawn(end, rank, code if isinstance(code, str) else code[rank])
        yield made
    finally:
        end.close()
        for worker in made.workers.values():
            worker.kill()
            worker.wait()
            assert worker.stdout is not None
            worker.stdout.close()


def collect(end: EngineEnd, count: int, seconds: float = 60.0) -> list[tuple[int, bytes]]:
    """The next ``count`` replies, waiting for them by poll."""
    poll = select.poll()
    poll.register(end.fileno_of_replies(), select.POLLIN)
    deadline = time.monotonic() + seconds
    taken: list[tuple[int, bytes]] = []
    while len(taken) < count:
        left = deadline - time.monotonic()
        assert left > 0, f"{len(taken)} of {count} replies have come; lost: {end.lost}"
        if poll.poll(left * 1e3):
            taken += end.take_replies()
    return taken
