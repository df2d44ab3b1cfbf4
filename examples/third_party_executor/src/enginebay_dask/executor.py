"""The executor ``dask``: a task for each rank, and a ``SocketLine`` to them; Dask carries no call."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from enginebay.errors import EngineDead, StartFailed, WorkerLost
from enginebay.interfaces import Executor, ExecutorContext, ExecutorHealth, StartResult, StartSpec, WorkerExit
from enginebay.messages import Envelope, RankReply, Replies, WorkerFailure, WorkerInfo
from enginebay.runtime import Runtime
from enginebay.transport import PendingCalls, encode_envelope
from enginebay.transport.socket import SocketLine
from enginebay_dask.plugin import DaskOptions
from enginebay_dask.worker import run

_LOG = logging.getLogger("enginebay.dask")
_GOOD_END_SECONDS = 2.0
_LEAST_SECONDS = 5.0


class DaskExecutor(Executor[DaskOptions]):
    """One Dask worker for each rank: of a cluster of our own, or of one that runs already."""

    def __init__(self, context: ExecutorContext[DaskOptions]) -> None:
        super().__init__(context)
        self._life: _Life | None = None

    def start(self, spec: StartSpec) -> StartResult:
        if self._life is not None and not self._life.stopping:
            raise StartFailed("executor 'dask' has workers: stop it before it starts again")
        reporter, runtime = weakref.ref(self), self.context.runtime

        def report(worker_exit: WorkerExit) -> None:
            if (executor := reporter()) is not None:  # threads hold this, and must not keep the executor
                executor.context.worker_exited(worker_exit)

        life = self._life = _Life(runtime, spec, report)
        weakref.finalize(self, lambda: runtime.spawner.thread("dask-drop", lambda: life.end(runtime.clock.now() + 5.0)))
        return StartResult(workers=life.begin(self.context.options, self.context.heartbeat_timeout))

    def submit(self, envelope: Envelope) -> Future[Replies]:
        if self._life is not None:
            return self._life.submit(envelope)
        future: Future[Replies] = Future()
        failure = WorkerFailure(phase="submit", error_type="WorkerLost", message="not started", kind="WorkerLost")
        replies = tuple(RankReply(rank=rank, failure=failure) for rank in envelope.ranks or (0,))
        future.set_result(Replies(generation=envelope.generation, call_id=envelope.call_id, replies=replies))
        return future

    def health(self) -> ExecutorHealth:
        if self._life is None or self._life.stopping:
            return ExecutorHealth(alive=False, detail="not started" if self._life is None else "stopped")
        return self._life.health()

    def stop(self, deadline: float) -> None:
        if self._life is not None:
            self._life.end(deadline)


class _Life:
    """The workers from their placement to their end. It knows nothing of the executor, which can so be forgotten."""

    def __init__(self, runtime: Runtime, spec: StartSpec, report: Callable[[WorkerExit], None]) -> None:
        self.stopping = False
        self._runtime, self._spec, self._report = runtime, spec, report
        self._incarnations = {p.rank: i for p, i in zip(spec.world.ranks, spec.incarnations, strict=True)}
        self._calls = PendingCalls(tuple(self._incarnations))
        self._hello: dict[int, Future[WorkerInfo]] = {rank: Future() for rank in self._incarnations}
        self._ended: dict[int, Future[str]] = {rank: Future() for rank in self._incarnations}
        self._lost: dict[int, str] = {}
        self._left: set[int] = set()
        self._processes: dict[int, int] = {}
        self._line: SocketLine | None = None
        self._client: Any = None
        self._cluster: Any = None

    def begin(self, options: DaskOptions, heartbeat: float) -> tuple[WorkerInfo, ...]:
        """Place a task for each rank, and wait until all have said HELLO."""
        from distributed import Client, LocalCluster

        size, now, deadline = len(self._incarnations), self._runtime.clock.now, self._spec.deadline
        if not options.scheduler:
            self._cluster = LocalCluster(
                n_workers=size,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
            )
        found: Future[list[str]] = Future()

        def connect() -> None:
            with contextlib.suppress(Exception):  # the deadline tells of it, and a closed client raises anything
                where, left = self._cluster or options.scheduler, max(0.1, deadline - now())
                client = self._client = Client(where, set_as_default=False, timeout=left)
                if self.stopping:  # it comes too late for anybody to close it
                    client.close()
                client.wait_for_workers(size, timeout=left)
                _settle(found, sorted(client.scheduler_info(n_workers=-1)["workers"])[:size])

        self._runtime.spawner.thread("dask-connect", connect)  # for it hangs as long as the scheduler does
        try:
            seats = self._runtime.wait(found, deadline)
        except TimeoutError:
            raise StartFailed(f"Dask's scheduler has not named {size} workers before the start's deadline") from None
        self._line = SocketLine(
            self._incarnations,
            address=options.listen,
            spawner=self._runtime.spawner,
            on_hello=self._on_hello,
            on_reply=self._calls.answer,
            on_lost=self._on_lost,
            on_left=self._on_left,
            heartbeat=heartbeat,
        )
        each = zip(self._incarnations.items(), seats, self._spec.payloads, self._line.tickets, strict=True)
        for (rank, incarnation), seat, payload, ticket in each:
            patience = max(0.0, deadline - now())
            task = self._client.submit(run, payload, ticket, patience, key=f"enginebay-{incarnation}", workers=[seat])
            task.add_done_callback(lambda done, rank=rank: self._on_end(rank, done))
        for rank, hello in self._hello.items():
            try:
                self._runtime.wait(hello, deadline)
            except TimeoutError:
                raise StartFailed(f"rank {rank} did not say HELLO from Dask's worker before the deadline") from None
        return tuple(hello.result() for hello in self._hello.values())

    def submit(self, envelope: Envelope) -> Future[Replies]:
        """Send a call. A rank that is lost, and every one after the stop, answers with a failure at once."""
        future = self._calls.open(envelope)
        if self._line is not None and not future.done():
            try:
                self._line.send(encode_envelope(envelope), envelope.ranks)
            except ConnectionError:  # it is being stopped, which answers what is open
                return future
        return future

    def health(self) -> ExecutorHealth:
        """What the line has told so far."""
        lost = tuple(sorted(self._lost))
        return ExecutorHealth(alive=not lost and not self._left, lost_ranks=lost, detail="; ".join(self._lost.values()))

    def end(self, deadline: float) -> None:
        """Hang up, give the workers time for a good end, and end those that hang. Idempotent."""
        self.stopping = True
        self._calls.close(lambda rank: self._failure(rank, "the executor was stopped before the worker answered"))
        if self._line is not None:
            self._line.close()
        until = min(deadline, self._runtime.clock.now() + _GOOD_END_SECONDS)
        for rank, hello in self._hello.items():
            try:
                self._runtime.wait(self._ended[rank], until if hello.done() else 0.0)
            except TimeoutError:  # it hangs, is stopped, or was killed, of which Dask does not tell
                with contextlib.suppress(KeyError, ProcessLookupError):
                    signal.pidfd_send_signal(self._processes[rank], signal.SIGKILL)
        while self._processes:
            os.close(self._processes.popitem()[1])
        client, self._client = self._client, None
        cluster, self._cluster = self._cluster, None
        for taken in (client, cluster):
            if taken is not None:
                try:
                    taken.close(timeout=max(_LEAST_SECONDS, deadline - self._runtime.clock.now()))
                except TimeoutError:
                    _LOG.error("Dask did not end its %s in time; it goes on trying", type(taken).__name__)

    def _on_hello(self, info: WorkerInfo) -> None:
        if info.host == socket.gethostname():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                self._processes[info.rank] = os.pidfd_open(info.pid)  # no other can come by its number now
        _settle(self._hello[info.rank], info)

    def _on_end(self, rank: int, task: Any) -> None:
        said = task.result() if task.status == "finished" else f"Dask's task is {task.status}"
        _settle(self._ended[rank], said)
        if not self._hello[rank].done():
            self._hello[rank].set_exception(StartFailed(f"rank {rank} ended before HELLO: {said}"))

    def _on_left(self, rank: int) -> None:
        self._left.add(rank)
        self._calls.lose(rank, self._failure(rank, f"rank {rank}: the worker was shut down"))

    def _on_lost(self, rank: int, why: str) -> None:
        if self.stopping:
            return
        self._lost[rank] = f"rank {rank}: the worker in Dask's process was lost: {why}"
        self._report(WorkerExit(rank=rank, incarnation=self._incarnations[rank], reason=why))
        self._calls.lose(rank, self._failure(rank, self._lost[rank]))

    def _failure(self, rank: int, message: str) -> WorkerFailure:
        kind = EngineDead.__name__ if self.stopping else WorkerLost.__name__
        return WorkerFailure(phase="call", error_type=kind, kind=kind, message=message, rank=rank)


def _settle(future: Future[Any], value: Any) -> None:
    try:
        future.set_result(value)
    except InvalidStateError:
        return  # it was settled already
