"""The hooks: when each is called, in which process, what may be changed, what is returned, since which API.

Hooks register, observe, or, at assembly, transform. None decides in the step loop: deciding is what the interfaces
are for. An observing hook that raises is disabled after the third time and reported; it never fails a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from enginebay.interfaces import (
        Executor,
        ExecutorContext,
        ExecutorPlugin,
        ExtensionPlugin,
        Finding,
        GraphPass,
        RunnerPlugin,
        SchedulerPlugin,
        StatusSinkPlugin,
        WorkerExtensionPlugin,
    )
    from enginebay.kvcache import CacheEventBatch
    from enginebay.messages import MemorySnapshot, RequestSummary, StepReport, WorkerInfo, WorkerStatus

PROJECT = "enginebay"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def enginebay_register_executors() -> list[ExecutorPlugin[Any]]:  # type: ignore[empty-body]  # a specification
    """Return the executors of this module. Called in every process that loads it. Nothing may be started. API 1.0."""


@hookspec
def enginebay_register_runners() -> list[RunnerPlugin[Any]]:  # type: ignore[empty-body]  # a specification
    """Return the model runners of this module. Called in every process that loads it. Import nothing heavy. API 1.0."""


@hookspec
def enginebay_register_schedulers() -> list[SchedulerPlugin[Any]]:  # type: ignore[empty-body]  # a specification
    """Return the schedulers of this module. Called in the engine's process. Import nothing heavy. API 1.0."""


@hookspec
def enginebay_register_status_sinks() -> list[StatusSinkPlugin[Any]]:  # type: ignore[empty-body]  # a specification
    """Return the status sinks of this module. Called in the engine's process. Import nothing heavy. API 1.2."""


@hookspec
def enginebay_register_extensions() -> list[ExtensionPlugin[Any]]:  # type: ignore[empty-body]  # a specification
    """Return the extensions of this module. Called in the engine's process if the config has their section. API 1.0."""


@hookspec
def enginebay_register_worker_extensions() -> list[WorkerExtensionPlugin[Any]]:  # type: ignore[empty-body]  # a specification
    """Return the worker extensions of this module. Called in the engine's process and in every worker, if the config
    names one of them. Import nothing heavy. API 1.2."""


@hookspec
def enginebay_configure(config: Any) -> None:
    """Look at the validated config before anything starts, in the engine's process.

    May refuse by raising ``ConfigError``; changes nothing (the config is frozen). Returns nothing. API 1.0.
    """


@hookspec
def enginebay_wrap_executor(executor: Executor[Any], context: ExecutorContext[Any]) -> Executor[Any] | None:
    """Wrap the executor at assembly, in the engine's process, in order of ``wrap_order``.

    Return the executor to use instead, or None to leave it. The one hook that is not observation. API 1.0.
    """


@hookspec
def enginebay_probe_reclaim(worker: WorkerStatus) -> list[Finding] | None:
    """Say of a stopped worker what is free, or is not, of that which you know it had taken; in the engine's process.

    Called after the executor's ``stop``, in a thread that is waited for for two seconds, and again about once a second
    as long as anything is ``Pending``: that holds back the next worker in its slot. Change nothing, and end nothing.
    Return None for a worker of which you know nothing. Whoever raises, or is late, is ``Unknown``. API 1.2.
    """


@hookspec
def enginebay_graph_passes() -> list[GraphPass]:  # type: ignore[empty-body]  # a specification
    """Return the passes of this module over captured graphs; in the engine's process at assembly, and in each worker.

    A runner's module brings those that are built in, the module of a worker extension others. Import nothing heavy:
    a pass does that when it is applied. API 1.2.
    """


@hookspec
def enginebay_engine_started(in_force: dict[str, str]) -> None:
    """Observe that the engine is ready, in the engine's process; ``in_force`` is what ``check`` prints. API 1.0."""


@hookspec
def enginebay_engine_stopped() -> None:
    """Observe that the engine has stopped and given back what it took, in the engine's process. API 1.0."""


@hookspec
def enginebay_worker_started(worker: WorkerInfo) -> None:
    """Observe that a worker has chosen its device, in the engine's process, once per worker. API 1.0."""


@hookspec
def enginebay_memory_snapshot(rank: int, snapshot: MemorySnapshot) -> None:
    """Observe a worker's memory before it loads, in the engine's process, once per worker. API 1.0."""


@hookspec
def enginebay_step_finished(report: StepReport) -> None:
    """Observe a step after its tokens were committed, in the engine's process, once per step. API 1.0."""


@hookspec
def enginebay_request_finished(summary: RequestSummary) -> None:
    """Observe a request's end, in the engine's process, once per request, also when aborted or failed. API 1.0."""


@hookspec
def enginebay_cache_events(batch: CacheEventBatch) -> None:
    """Observe what happened to a KV cache's content, in the engine's process, once per step in which anything did, and
    after a reset.

    The batches of a replica come in order, and whoever applies their events knows what can be found in its cache.
    Without an implementation nothing is kept. API 1.2.
    """
