"""The executor ``ray``: Ray places the workers and watches their processes, our own line carries every call."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from enginebay.errors import StartFailed
from enginebay.interfaces import Executor, ExecutorContext, ExecutorHealth, StartResult, StartSpec, WorkerExit
from enginebay.messages import Envelope, Replies
from enginebay.runtime import Runtime
from enginebay.transport import not_started
from enginebay_ray import cluster
from enginebay_ray.actors import answer
from enginebay_ray.environment import environment_of_workers
from enginebay_ray.options import RayOptions
from enginebay_ray.placement import Placement, place_workers
from enginebay_ray.session import Session

__all__ = ["RayExecutor"]

_SECONDS_TO_DROP: Final = 5.0
_SECONDS_TO_EXPLAIN: Final = 2.0
"""After a start's deadline, for asking Ray what it has instead of the place that it did not find."""


class _Life:
    """What a start has taken, in the order of taking; given back in the other, also half-way."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.cluster: cluster.Cluster | None = None
        self.session: Session | None = None

    def end(self, deadline: float) -> None:
        """Everything; idempotent."""
        if self.session is not None:
            self.session.end(deadline)
        joined, self.cluster = self.cluster, None
        if joined is not None:
            cluster.leave(joined, self._runtime, deadline)

    def end_in(self, seconds: float) -> None:
        """``end``, with its deadline from now."""
        self.end(self._runtime.clock.now() + seconds)


class RayExecutor(Executor[RayOptions]):
    """One actor for each rank, in a placement group of its own. Dropping the last reference ends the workers."""

    def __init__(self, context: ExecutorContext[RayOptions]) -> None:
        super().__init__(context)
        self._life: _Life | None = None
        self._finalizer: weakref.finalize[[_Life, Runtime], RayExecutor] | None = None

    def start(self, spec: StartSpec) -> StartResult:
        if self._life is not None:
            raise StartFailed("executor 'ray' has workers: stop it before it starts again")
        context, options, runtime = self.context, self.context.options, self.context.runtime
        environment = environment_of_workers(options.env, os.environ)
        life = self._life = _Life(runtime)
        self._finalizer = weakref.finalize(self, _drop, life, runtime)
        self._finalizer.atexit = False  # then it is too late for a thread: _end_all does it
        _LIVE.add(life)
        workers = len(spec.world.ranks)
        life.cluster = cluster.join(options.address, workers * options.cpus_per_worker, runtime, spec.deadline)
        placement = _placed(options, workers, runtime, spec.deadline)
        life.session = Session(runtime, spec, placement, _reporter(weakref.ref(self)))
        on_this_host = placement.is_on_one_node and options.transport == "auto"
        address = str(context.run_folder()) if on_this_host else cluster.own_address()
        return StartResult(
            workers=life.session.launch(
                environment, address=address, heartbeat=context.heartbeat_timeout, record=context.record_resource
            )
        )

    def submit(self, envelope: Envelope) -> Future[Replies]:
        session = self._session()
        return not_started(envelope) if session is None else session.submit(envelope)

    def health(self) -> ExecutorHealth:
        session = self._session()
        return session.health() if session is not None else ExecutorHealth(alive=False, detail="not started")

    def stacks(self, deadline: float) -> dict[int, str]:
        session = self._session()
        return session.stacks(deadline) if session is not None else {}

    def stop(self, deadline: float) -> None:
        life, self._life = self._life, None
        if self._finalizer is not None:
            self._finalizer.detach()
        if life is not None:
            life.end(deadline)

    def _session(self) -> Session | None:
        return self._life.session if self._life is not None else None


def _placed(options: RayOptions, workers: int, runtime: Runtime, deadline: float) -> Placement:
    """A place for each of the workers, also asked of a cluster that has gone."""
    seconds = max(0.0, deadline - runtime.clock.now())

    def place() -> Placement:
        return place_workers(options, workers, seconds)

    try:
        return answer(runtime, "place", place, deadline + _SECONDS_TO_EXPLAIN, Placement.remove)
    except TimeoutError:
        raise StartFailed("Ray did not answer before the start's deadline: is the cluster still there?") from None


_LIVE: Final[weakref.WeakSet[_Life]] = weakref.WeakSet()
"""What the end of this process has to end; what was ended already is ended again for nothing."""


@atexit.register
def _end_all() -> None:
    for life in list(_LIVE):
        life.end_in(_SECONDS_TO_DROP)


def _drop(life: _Life, runtime: Runtime) -> None:
    """Nobody refers to the executor any more: end its workers, without holding up whoever collects garbage."""
    runtime.spawner.thread("enginebay-ray-drop", lambda: life.end_in(_SECONDS_TO_DROP))


def _reporter(executor: weakref.ref[RayExecutor]) -> Callable[[WorkerExit], None]:
    """Tells the core of a death; holds the executor weakly, because the session's threads hold this."""

    def report(worker_exit: WorkerExit) -> None:
        alive = executor()
        if alive is not None:
            alive.context.worker_exited(worker_exit)

    return report
