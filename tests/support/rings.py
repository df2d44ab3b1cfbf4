"""Worker processes at the other end of shared rings, and threads that wait at this one, for tests of the rings."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
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
SLEEPS = "print('up', flush=True)\ntime.sleep(600)\n"
SMALL = {"slots": 8, "slot_bytes": 64}
"""Sizes of rings that are full soon."""


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


def until(said: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + 60
    while not said():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def asleep(thread: threading.Thread) -> bool:
    """Whether the thread waits in the kernel, for a doorbell."""
    assert thread.is_alive()
    with open(f"/proc/self/task/{thread.native_id}/wchan") as file:
        return "poll" in file.read()


class Sender:
    """A thread that sends, and what came of it."""

    def __init__(self, send: Callable[[], None]) -> None:
        self.raised: BaseException | None = None
        self._send = send
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._send()
        except BaseException as error:
            self.raised = error

    def join(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive()


def echoed(end: EngineEnd, count: int) -> list[bytes]:
    """What comes back of so many frames, sent by a thread while this one takes the replies."""

    def send() -> None:
        for number in range(count):
            end.send(b"%d" % number, None, time.monotonic() + 60)

    sender = Sender(send)
    frames = [frame[16:] for _, frame in collect(end, count)]
    sender.join()
    assert sender.raised is None
    return frames
