"""One life of a worker that is a thread of the engine: the line to it, what is pending on it, and how it ended.

The threads hold the session and nothing above it, so that an executor that nobody refers to any more can be collected
and its thread ended.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Final

from enginebay.errors import EngineDead, WorkerLost
from enginebay.messages import Envelope, RankReply, Replies, WorkerFailure, WorkerInfo
from enginebay.runtime import Channel, ChannelClosed, Clock, Runtime, Thread
from enginebay.transport.beat import Beat
from enginebay.transport.codec import decode_reply, decode_start_payload, encode_envelope, encode_reply
from enginebay.worker.kernel import scheduled
from enginebay.worker.serve import serve

_LAST_CALL_SECONDS: Final = 10.0
"""How long the end of the process waits for the call that a worker is in."""

_LIVE: Final[weakref.WeakSet[ThreadSession]] = weakref.WeakSet()
"""Sessions whose threads may be running; what the end of the process has to wait for."""


@atexit.register
def _end_threads() -> None:
    """End what nobody stopped: a thread that is cut off inside a native library takes the process down with SIGABRT."""
    sessions = list(_LIVE)
    for session in sessions:
        session.close()
    for session in sessions:
        session.join(_LAST_CALL_SECONDS)


class _WorkerEnd:
    """The worker's end of the line: a ``WorkerChannel``."""

    def __init__(self, channel: Channel, clock: Clock) -> None:
        self._channel, self._clock = channel, clock
        self.beat = Beat(phase="start", at_ns=clock.now_ns())

    def receive(self, deadline: float | None) -> bytes | None:
        return self._channel.receive(deadline)

    def reply(self, generation: int, call_id: int, payload: bytes) -> None:
        self._channel.send(encode_reply(generation, call_id, payload))

    def heartbeat(self, phase: str) -> None:
        self.beat = Beat.said(phase, self._clock.now_ns())

    def closed(self) -> bool:
        return self._channel.is_closed


class ThreadSession:
    """The worker's thread from start to end. ``on_lost`` is called once if it ends without being asked to."""

    def __init__(
        self,
        runtime: Runtime,
        generation: int,
        rank: int,
        incarnation: str,
        *,
        label: str,
        on_lost: Callable[[ThreadSession], None],
    ) -> None:
        """Assigns. ``label`` is the executor's name, which the threads bear."""
        self.generation = generation
        self.rank = rank
        self.incarnation = incarnation
        self.hello: Future[WorkerInfo] = Future()
        self.crash: tuple[str, ...] = ()
        """The last lines of the traceback, when the thread ended by an exception."""
        self.stopping = False
        self.left = False
        """Whether the worker ended in good order, by a ``Shutdown`` call."""
        self._on_lost = on_lost
        self._name = f"enginebay-{label}-{incarnation}"
        self._ours, theirs = runtime.transport.pair(f"{label}.{incarnation}")
        self._theirs = _WorkerEnd(theirs, runtime.clock)
        self._lock = threading.Lock()
        self._pending: dict[tuple[int, int], Future[Replies]] = {}
        self._ended = False
        self._runtime = runtime
        self._worker: Thread | None = None
        self._reader: Thread | None = None
        self._reader_ident = 0
        self._worker_native: int | None = None

    @property
    def phase(self) -> str:
        """What the worker is doing, as it said last: "idle", "load_model", …"""
        return self._theirs.beat.phase

    @property
    def beat(self) -> Beat:
        """The worker's last sign of life."""
        return self._theirs.beat

    @property
    def scheduled(self) -> tuple[float, float]:
        """Seconds that the worker's thread was on a processor, and that it waited for one, in all; -1: not known."""
        return (-1.0, -1.0) if self._worker_native is None else scheduled(os.getpid(), self._worker_native)

    def launch(self, payload: bytes) -> None:
        """Start the worker's thread, and the one that reads its replies."""
        _LIVE.add(self)
        self._reader = self._runtime.spawner.thread(f"{self._name}-replies", self._read)
        self._worker = self._runtime.spawner.thread(self._name, lambda: self._work(payload))

    def submit(self, envelope: Envelope) -> Future[Replies]:
        """Queue a call; returns at once. A call that cannot be sent has a failure for its answer."""
        future: Future[Replies] = Future()
        key = (envelope.generation, envelope.call_id)
        if envelope.ranks is not None and self.rank not in envelope.ranks:
            _complete(future, Replies(generation=key[0], call_id=key[1], replies=()))
            return future
        frame = encode_envelope(envelope)
        with self._lock:  # registered and sent under one lock: the order of sending is the order of submitting
            if self._ended or self.stopping:
                refused = True
            else:
                refused = False
                self._pending[key] = future
                try:
                    self._ours.send(frame)
                except ChannelClosed:
                    del self._pending[key]
                    refused = True
        if refused:
            _complete(future, self._without_answer(key))
        return future

    def close(self) -> None:
        """Ask the thread to end: it does so when the call that it is in returns. Idempotent; never blocks."""
        self.stopping = True
        self._ours.close()

    def join(self, seconds: float) -> bool:
        """Wait for both threads; whether the worker's has ended. The reader itself (in ``on_lost``) may call it."""
        deadline = self._runtime.clock.now() + seconds
        if self._worker is not None:
            self._worker.join(seconds)
        if self._reader is not None and threading.get_ident() != self._reader_ident:
            self._reader.join(max(0.0, deadline - self._runtime.clock.now()))
        return not self.is_alive()

    def is_alive(self) -> bool:
        """Whether the worker's thread runs."""
        return self._worker is not None and self._worker.is_alive()

    def fail_pending(self) -> None:
        """Answer everything that is pending with a failure."""
        with self._lock:
            self._ended = True
            pending, self._pending = self._pending, {}
        for key, future in pending.items():
            _complete(future, self._without_answer(key))

    def _work(self, payload: bytes) -> None:
        self._worker_native = threading.get_native_id()
        try:
            place = decode_start_payload(payload).place
            self.hello.set_result(
                WorkerInfo(
                    rank=place.rank,
                    local_rank=place.local_rank,
                    incarnation=self.incarnation,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                )
            )
            serve(payload, self._theirs)
            self.left = True
        except BaseException as error:  # whatever ends a worker is told by its session; a thread has nobody else
            self.crash = tuple(traceback.format_exception(error)[-1].strip().splitlines()[-5:])
            if not self.hello.done():
                self.hello.set_exception(error)
        finally:
            self._ours.close()

    def _read(self) -> None:
        self._reader_ident = threading.get_ident()
        while (frame := self._ours.receive(None)) is not None:
            generation, call_id, payload = decode_reply(frame)
            with self._lock:
                future = self._pending.pop((generation, call_id), None)
            if future is not None:  # else nobody waits for it any more
                replies = (RankReply(rank=self.rank, payload=payload),)
                _complete(future, Replies(generation=generation, call_id=call_id, replies=replies))
        lost = not self.stopping and not self.left and self.hello.exception() is None
        if lost:
            self._on_lost(self)  # first: who is woken by the answers below asks how it ended
        self.fail_pending()

    def _without_answer(self, key: tuple[int, int]) -> Replies:
        if self.stopping:
            kind, message = EngineDead.__name__, "the executor was stopped before the worker answered"
        else:
            kind, message = WorkerLost.__name__, f"rank {self.rank}: the worker's thread ended before it answered"
            if self.crash:
                message += f": {self.crash[-1]}"
        failure = WorkerFailure(
            phase=self.phase,
            error_type=kind,
            message=message,
            kind=kind,
            rank=self.rank,
            host=socket.gethostname(),
            pid=os.getpid(),
            last_log_lines=self.crash,
        )
        return Replies(generation=key[0], call_id=key[1], replies=(RankReply(rank=self.rank, failure=failure),))


def _complete(future: Future[Replies], replies: Replies) -> None:
    try:
        future.set_result(replies)
    except InvalidStateError:  # whoever asked has cancelled it: the answer comes too late
        return
