"""The executor ``mp``: its workers are processes of this machine, and calls reach them through shared memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future

from enginebay.errors import StartFailed
from enginebay.interfaces import Executor, ExecutorContext, ExecutorHealth, StartResult, StartSpec, WorkerExit
from enginebay.messages import Envelope, Replies
from enginebay.transport import not_started
from enginebay_mp.group import Group
from enginebay_mp.options import MpOptions

__all__ = ["MpExecutor"]


class MpExecutor(Executor[MpOptions]):
    """One process for each rank of the world, all on this machine.

    ``start`` spawns all of them before it waits for any, and ``stop`` reaps every one, wedged or stopped ones too. A
    worker's death is seen by its pidfd, and told at once with its signal and last log lines. Dropping the last
    reference ends the workers, and so does the end of the interpreter; when this process is killed, the kernel ends
    them.
    """

    def __init__(self, context: ExecutorContext[MpOptions]) -> None:
        super().__init__(context)
        self._group: Group | None = None
        self._finalizer: weakref.finalize[[], MpExecutor] | None = None

    def start(self, spec: StartSpec) -> StartResult:
        old = self._group
        if old is not None and not (old.stopping and old.is_over):
            raise StartFailed(f"executor 'mp' is running generation {old.generation}: stop it before it starts again")
        if self._finalizer is not None:
            self._finalizer.detach()
        group = Group(self.context, spec, _reporter(weakref.ref(self)))
        self._group = group
        self._finalizer = weakref.finalize(self, group.abandon)
        group.launch()
        return group.wait_for_hello()

    def submit(self, envelope: Envelope) -> Future[Replies]:
        return not_started(envelope) if self._group is None else self._group.submit(envelope)

    def health(self) -> ExecutorHealth:
        if self._group is None:
            return ExecutorHealth(alive=False, detail="not started")
        return self._group.health()

    def stacks(self, deadline: float) -> dict[int, str]:
        return {} if self._group is None else self._group.stacks(deadline)

    def stop(self, deadline: float) -> None:
        if self._group is not None:
            self._group.end(deadline)


def _reporter(executor: weakref.ref[MpExecutor]) -> Callable[[WorkerExit], None]:
    """Tells the core of a death; holds the executor weakly, because the group's threads hold this."""

    def report(worker_exit: WorkerExit) -> None:
        alive = executor()
        if alive is not None:
            alive.context.worker_exited(worker_exit)

    return report
