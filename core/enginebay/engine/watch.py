"""Deaths of workers as the executor reports them: whoever waits for an answer is woken at once, with the cause."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, InvalidStateError

from enginebay.errors import WorkerLost
from enginebay.interfaces import WorkerExit
from enginebay.messages import Replies
from enginebay.runtime import Runtime

__all__ = ["WorkerWatch"]


class WorkerWatch:
    """Told of deaths by the executor's threads, asked by the core's one. The first death is the cause."""

    def __init__(self) -> None:
        self._exit: WorkerExit | None = None
        self._waiting: Future[None] | None = None

    def exited(self, worker_exit: WorkerExit) -> None:
        """``ExecutorContext.worker_exited``: a worker's process has ended. From any thread; returns at once."""
        self._exit = self._exit or worker_exit
        # wait() writes what is read here, and reads what is written here: whoever is second sees the other
        if (waiting := self._waiting) is not None:
            _wake(waiting)

    def raise_if_lost(self) -> None:
        """Raise ``WorkerLost`` when a death was reported."""
        if self._exit is not None:
            raise WorkerLost(_describe(self._exit))

    def wait(self, runtime: Runtime, future: Future[Replies], deadline: float) -> Replies:
        """The future's result; raises ``WorkerLost`` as soon as a death is reported, ``TimeoutError`` at the deadline.

        An answer that has come counts for more than a death after it.
        """
        woken: Future[None] = Future()
        self._waiting = woken
        try:
            future.add_done_callback(lambda _: _wake(woken))
            if self._exit is None:
                runtime.wait(woken, deadline)
        finally:
            self._waiting = None
        if not future.done():
            self.raise_if_lost()
        return runtime.wait(future, deadline)


def _wake(waiting: Future[None]) -> None:
    with contextlib.suppress(InvalidStateError):  # it is awake
        waiting.set_result(None)


def _describe(worker_exit: WorkerExit) -> str:
    """``rank 1: the worker ended (signal 9); last log lines: …``."""
    how = ""
    if worker_exit.signal is not None:
        how = f" (signal {worker_exit.signal})"
    elif worker_exit.exit_code is not None:
        how = f" (exit code {worker_exit.exit_code})"
    text = f"rank {worker_exit.rank}: the worker ended{how}"
    if worker_exit.last_log_lines:
        text += "; last log lines: " + " | ".join(worker_exit.last_log_lines)
    return text
