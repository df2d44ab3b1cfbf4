"""The executor ``uni``: its one worker is a thread here, and is spoken to in bytes as a process would be."""

from __future__ import annotations

import logging
import os
import socket
import weakref
from collections.abc import Callable
from concurrent.futures import Future

from enginebay.errors import CapabilityError, StartFailed, WorkerLost
from enginebay.interfaces import (
    Executor,
    ExecutorContext,
    ExecutorHealth,
    NoOptions,
    StartResult,
    StartSpec,
    WorkerExit,
)
from enginebay.messages import Envelope, RankReply, Replies, WorkerFailure
from enginebay_uni.session import Session

_LOG = logging.getLogger("enginebay.uni")


class UniExecutor(Executor[NoOptions]):
    """One worker in a thread of this process, for a world of one rank.

    The thread runs ``enginebay.worker.serve`` as a stranger's worker process does. HELLO is the thread being up.
    A thread cannot be killed: ``stop`` returns by its deadline also when the worker hangs, says so in the log and in
    ``health``, and ``start`` is then refused until the thread has ended. Dropping the last reference ends the thread.
    """

    def __init__(self, context: ExecutorContext[NoOptions]) -> None:
        super().__init__(context)
        self._session: Session | None = None
        self._finalizer: weakref.finalize[[], UniExecutor] | None = None

    def start(self, spec: StartSpec) -> StartResult:
        if len(spec.world.ranks) != 1:
            raise CapabilityError(
                f"executor 'uni' runs one worker, and the plan has {len(spec.world.ranks)} ranks: choose executor "
                "'mp', or set tensor_parallel_size = 1 and pipeline_parallel_size = 1 in [parallel]"
            )
        old = self._session
        if old is not None and not old.stopping and old.is_alive():
            raise StartFailed(f"executor 'uni' is running generation {old.generation}: stop it before it starts again")
        if old is not None and old.is_alive():
            raise StartFailed(
                f"{_wedged(old)}, so executor 'uni' cannot start generation {spec.generation} beside it: "
                "end this process"
            )
        session = Session(
            self.context.runtime, spec.generation, spec.incarnations[0], on_lost=_reporter(weakref.ref(self))
        )
        self._session = session
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, session.close)
        session.launch(spec.payloads[0])
        try:
            worker = self.context.runtime.wait(session.hello, spec.deadline)
        except TimeoutError:
            raise StartFailed("rank 0: the worker's thread did not say HELLO before the deadline") from None
        except Exception as error:
            raise StartFailed(f"rank 0: the worker's thread ended before HELLO: {error}") from error
        return StartResult(workers=(worker,))

    def submit(self, envelope: Envelope) -> Future[Replies]:
        session = self._session
        if session is not None:
            return session.submit(envelope)
        future: Future[Replies] = Future()
        failure = WorkerFailure(
            phase="submit",
            error_type=WorkerLost.__name__,
            message="the executor has not been started",
            kind=WorkerLost.__name__,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        reply = RankReply(rank=0, failure=failure)
        future.set_result(Replies(generation=envelope.generation, call_id=envelope.call_id, replies=(reply,)))
        return future

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
            return ExecutorHealth(alive=False, lost_ranks=(0,), detail=detail)
        return ExecutorHealth(alive=True, detail=session.phase)

    def stop(self, deadline: float) -> None:
        session = self._session
        if session is None:
            return
        session.close()
        session.fail_pending()
        if not session.join(max(0.0, deadline - self.context.runtime.clock.now())):
            _LOG.error(
                "%s; a thread cannot be killed, so what it holds is given back when it returns", _wedged(session)
            )
        elif session.crash:
            _LOG.error("rank 0: the worker ended with an error: %s", "; ".join(session.crash))


def _reporter(executor: weakref.ref[UniExecutor]) -> Callable[[Session], None]:
    """Tells the core of a death; holds the executor weakly, because the session's threads hold this."""

    def report(session: Session) -> None:
        alive = executor()
        if alive is not None:
            lost = WorkerExit(rank=0, incarnation=session.incarnation, last_log_lines=session.crash)
            alive.context.worker_exited(lost)

    return report


def _wedged(session: Session) -> str:
    return f"rank 0: the worker's thread of generation {session.generation} is still in {session.phase}"
