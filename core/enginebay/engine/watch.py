"""Deaths of workers as the executor reports them: whoever waits for an answer is woken at once, with the cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from signal import Signals

from enginebay.errors import WorkerLost, one_line
from enginebay.interfaces import WorkerExit
from enginebay.messages import Replies
from enginebay.runtime import Runtime

__all__ = ["WorkerWatch", "cause_of", "describe_exit"]

_LINES_IN_WORDS, _LINE_IN_WORDS = 5, 150
_LAST_WORDS_SECONDS = 0.1
"""How long the answer of a group's only worker, whose death was told, is waited for: its executor fails it at once."""
_SIGNALS = {one.value: one.name for one in Signals}


class WorkerWatch:
    """Told of deaths by the executor's threads, asked by the core's one. The first death that counts is the cause.

    ``meanwhile`` is called by the core's thread, about once a second, while it waits for new workers.
    """

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] = lambda: None
        self._exits: list[WorkerExit] = []
        self._expected: frozenset[str] | None = None
        self._waiting: Future[None] | None = None
        self._wake_idle: Callable[[], None] | None = None

    def wake(self, idle: Callable[[], None]) -> None:
        """Call ``idle`` at each death, from any thread: it wakes who has nothing to do, and returns at once."""
        self._wake_idle = idle

    def follow(self, before: WorkerWatch) -> None:
        """Wake whom that one, of the workers before these, has woken."""
        self._wake_idle = before._wake_idle

    def exited(self, worker_exit: WorkerExit) -> None:
        """``ExecutorContext.worker_exited``: a worker's process has ended. From any thread; returns at once."""
        self._exits.append(worker_exit)
        # wait() writes what is read here, and reads what is written here: whoever is second sees the other
        if (waiting := self._waiting) is not None:
            _wake(waiting)
        if (idle := self._wake_idle) is not None:
            idle()

    def expect(self, incarnations: Iterable[str]) -> None:
        """From now on only these workers' deaths count. Before any was named, every report does.

        A late report of a worker of an earlier generation says nothing of those that took its place.
        """
        self._expected = frozenset(incarnations)
        self._exits.clear()

    @property
    def is_lost(self) -> bool:
        """Whether a death that counts was reported; from any thread."""
        return any(self._expected is None or one.incarnation in self._expected for one in self._exits)

    def raise_if_lost(self) -> None:
        """Raise ``WorkerLost`` when a death that counts was reported."""
        for worker_exit in self._exits:
            if self._expected is None or worker_exit.incarnation in self._expected:
                raise WorkerLost(describe_exit(worker_exit))

    def wait(self, runtime: Runtime, future: Future[Replies], deadline: float) -> Replies:
        """The future's result; raises ``WorkerLost`` as soon as a death is reported, ``TimeoutError`` at the deadline.

        An answer that has come counts for more than a death after it. So does the one that stands for an only worker's,
        which an executor gives right after it has told of the death: it says where that was, whoever is faster.
        """
        while not future.done():
            woken = runtime.clock.event()
            self._waiting = woken
            try:
                _wake_when_done(future, woken)
                if not future.done():
                    self._hear_out(runtime, future, deadline)
                runtime.wait(woken, deadline)
            finally:
                self._waiting = None
        return runtime.wait(future, deadline)

    def _hear_out(self, runtime: Runtime, future: Future[Replies], deadline: float) -> None:
        try:
            self.raise_if_lost()
        except WorkerLost:
            if self._expected is None or len(self._expected) > 1:  # the others may never answer
                raise
            with suppress(TimeoutError):
                runtime.wait(future, min(deadline, runtime.clock.now() + _LAST_WORDS_SECONDS))
            if not future.done():
                raise


def _wake_when_done(future: Future[Replies], waiting: Future[None]) -> None:
    future.add_done_callback(lambda _: _wake(waiting))


def _wake(waiting: Future[None]) -> None:
    try:
        waiting.set_result(None)
    except InvalidStateError:
        return  # it is awake


def cause_of(worker_exit: WorkerExit) -> str:
    """One word for it, the same for each end of the same kind: ``SIGKILL``, ``ExitCode1``, ``Unknown``."""
    if worker_exit.signal is not None:
        return _SIGNALS.get(worker_exit.signal, f"Signal{worker_exit.signal}")
    return "Unknown" if worker_exit.exit_code is None else f"ExitCode{worker_exit.exit_code}"


def describe_exit(worker_exit: WorkerExit) -> str:
    """``rank 1: the worker ended (signal 9); last log lines: …``."""
    how = ""
    if worker_exit.reason:
        how = f" ({worker_exit.reason})"
    elif worker_exit.signal is not None:
        how = f" (signal {worker_exit.signal})"
    elif worker_exit.exit_code is not None:
        how = f" (exit code {worker_exit.exit_code})"
    text = f"rank {worker_exit.rank}: the worker ended{how}"
    if worker_exit.last_log_lines:
        lines = [one_line(line, _LINE_IN_WORDS) for line in worker_exit.last_log_lines[-_LINES_IN_WORDS:]]
        text += "; last log lines: " + " | ".join(lines)
    return text
