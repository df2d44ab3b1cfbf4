"""The engine's end of a socket line, with everything that it tells kept, and workers that echo."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from enginebay.messages import Envelope, WorkerInfo
from enginebay.runtime import system_runtime
from enginebay.transport import decode_envelope, encode_envelope
from enginebay.transport.socket import SocketChannel, SocketLine

PATIENCE = 30.0


def wait_until(what: Callable[[], object], why: str) -> None:
    """Until it is so; only a fault lets it take long."""
    until = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < until, f"in vain: {why}"
        time.sleep(0.002)


class Line:
    """A ``SocketLine`` for the ranks 0 to ``ranks`` - 1."""

    def __init__(self, address: str, ranks: int = 1, **options: Any) -> None:
        self.hellos: list[WorkerInfo] = []
        self.replies: list[tuple[int, int, int, bytes]] = []
        self.lost: list[tuple[int, str]] = []
        self.left: list[int] = []
        self.line = SocketLine(
            {rank: f"life-{rank}" for rank in range(ranks)},
            address=address,
            spawner=system_runtime(0).spawner,
            on_hello=self.hellos.append,
            on_reply=lambda *reply: self.replies.append(reply),
            on_lost=lambda rank, why: self.lost.append((rank, why)),
            on_left=self.left.append,
            **options,
        )
        self._calls = 0

    def info(self, rank: int = 0, incarnation: str | None = None) -> WorkerInfo:
        return WorkerInfo(
            rank=rank, local_rank=rank, incarnation=incarnation or f"life-{rank}", host="here", pid=os.getpid()
        )

    def channel(self, rank: int = 0) -> SocketChannel:
        return SocketChannel.connect(self.line.tickets[rank], self.info(rank), time.monotonic() + PATIENCE)

    def ask(self, payload: bytes = b"", ranks: tuple[int, ...] | None = None) -> int:
        self._calls += 1
        self.line.send(encode_envelope(Envelope(generation=0, call_id=self._calls, payload=payload)), ranks)
        return self._calls

    def works(self, *ranks: int) -> bool:
        """Whether a call to each of these ranks is answered, by workers that echo."""
        call = self.ask(b"still there?", ranks)
        wait_until(lambda: {reply[0] for reply in self.replies if reply[2] == call} == set(ranks), "an answer")
        return True


MakeLine = Callable[..., Line]
"""``make_line(ranks, at, **options)``, whose lines are closed after the test."""


class Echo:
    """A worker in a thread: answers each call with its payload, until its channel closes."""

    def __init__(self, channel: SocketChannel, last_words: str = "") -> None:
        self._channel = channel
        self._last_words = last_words
        self._thread = threading.Thread(target=self._work, name="echo")
        self._thread.start()

    def join(self) -> bool:
        self._thread.join(PATIENCE)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (frame := self._channel.receive(None)) is not None:
            envelope = decode_envelope(frame)
            self._channel.heartbeat(f"execute_model {envelope.call_id}")
            self._channel.reply(envelope.generation, envelope.call_id, envelope.payload)
        self._channel.close(self._last_words)


def private_folder(folder: Path) -> Path:
    """A short path of mode 0700, as a run folder has."""
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
