"""An executor of one worker: a thread of the engine's process, spoken to in bytes as a process would be."""

from __future__ import annotations

import logging
import weakref
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import ClassVar, Generic, TypeVar

from enginebay.errors import StartFailed, WorkerHung
from enginebay.interfaces import (
    Executor,
    ExecutorContext,
    ExecutorHealth,
    Options,
    RankHealth,
    StartResult,
    StartSpec,
    WorkerExit,
)
from enginebay.messages import Envelope, Replies
from enginebay.transport import not_started
from enginebay.worker.thread import ThreadSession

O = TypeVar("O", bound=Options)


class ThreadExecutor(Executor[O], Generic[O]):
    """One worker in a thread of this process: subclasses say in ``prepare`` what has to stand before it runs.

    The thread runs ``enginebay.worker.serve`` as a stranger's worker process does. HELLO is the thread being up.
    A thread cannot be killed: ``stop`` returns by its deadline also when the worker hangs, says so in the log and in
    ``health``, and ``start`` is then refused until the thread has ended. Dropping the last reference ends the thread.
    """

    label: ClassVar[str]
    """The executor's name, in messages and in the names of its threads."""

    def __init__(self, context: ExecutorContext[O]) -> None:
        super().__init__(context)
        self._session: ThreadSession | None = None
        self._log = logging.getLogger(f"enginebay.{self.label}")
        self._finalizer: weakref.finalize[[], ThreadExecutor[O]] | None = None

    @abstractmethod
    def prepare(self, spec: StartSpec) -> None:
        """Refuse a plan that this executor cannot run; take what the worker needs. ``stop`` is the undo."""

    def start(self, spec: StartSpec) -> StartResult:
        old, who = self._session, f"executor '{self.label}'"
        if old is not None and not old.stopping and old.is_alive():
            raise StartFailed(f"{who} is running generation {old.generation}: stop it before it starts again")
        if old is not None and old.is_alive():
            raise WorkerHung(
                f"{_wedged(old)}, so {who} cannot start generation {spec.generation} beside it: end this process"
            )
        self.prepare(spec)
        (rank,) = spec.world.own_ranks or [place.rank for place in spec.world.ranks]
        session = ThreadSession(
            self.context.runtime,
            spec.generation,
            rank,
            spec.incarnations[0],
            label=self.label,
            on_lost=_reporter(weakref.ref(self)),
        )
        self._session = session
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, session.close)
        session.launch(spec.payloads[0])
        try:
            worker = self.context.runtime.wait(session.hello, spec.deadline)
        except TimeoutError:
            raise StartFailed(f"rank {rank}: the worker's thread did not say HELLO before the deadline") from None
        except Exception as error:
            raise StartFailed(f"rank {rank}: the worker's thread ended before HELLO: {error}") from error
        return StartResult(workers=(worker,))

    def submit(self, envelope: Envelope) -> Future[Replies]:
        return not_started(envelope) if self._session is None else self._session.submit(envelope)

    def health(self) -> ExecutorHealth:
        session = self._session
        if session is None:
            return ExecutorHealth(alive=False, detail="not started")
        if session.stopping:
            return ExecutorHealth(alive=False, detail=_wedged(session) if session.is_alive() else "stopped")
        if session.left:
            return ExecutorHealth(alive=False, detail="the worker was shut down")
        if not session.is_alive():
            detail = "; ".join(session.crash) or "the worker's thread has ended"
            return ExecutorHealth(alive=False, lost_ranks=(session.rank,), detail=detail)
        beat = session.beat
        age = (self.context.runtime.clock.now_ns() - beat.at_ns) / 1e9
        ran, queued = session.scheduled
        rank = RankHealth(
            rank=session.rank,
            phase=beat.phase,
            step=beat.step,
            age=max(0.0, age),
            budget=beat.budget_s,
            ran=ran,
            queued=queued,
        )
        return ExecutorHealth(alive=True, ranks=(rank,))

    def stop(self, deadline: float) -> None:
        session = self._session
        if session is None:
            return
        session.close()
        session.fail_pending()
        if not session.join(max(0.0, deadline - self.context.runtime.clock.now())):
            self._log.error(
                "%s; a thread cannot be killed, so what it holds is given back when it returns", _wedged(session)
            )
        elif session.crash:
            self._log.error("rank %d: the worker ended with an error: %s", session.rank, "; ".join(session.crash))


def _reporter(executor: weakref.ref[ThreadExecutor[O]]) -> Callable[[ThreadSession], None]:
    """Tells the core of a death; holds the executor weakly, because the session's threads hold this."""

    def report(session: ThreadSession) -> None:
        alive = executor()
        if alive is not None:
            lost = WorkerExit(rank=session.rank, incarnation=session.incarnation, last_log_lines=session.crash)
            alive.context.worker_exited(lost)

    return report


def _wedged(session: ThreadSession) -> str:
    return f"rank {session.rank}: the worker's thread of generation {session.generation} is still in {session.phase}"
