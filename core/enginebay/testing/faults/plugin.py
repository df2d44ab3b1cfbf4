"""What ``faults`` is to the engine: an extension that wraps executors, and a worker extension for faults inside."""

from __future__ import annotations

from typing import Any, Final

from enginebay.errors import ConfigError
from enginebay.hookspecs import hookimpl
from enginebay.interfaces import (
    Executor,
    ExecutorContext,
    ExtensionPlugin,
    NoOptions,
    WorkerExtensionContext,
    WorkerExtensionPlugin,
)
from enginebay.testing.faults.options import IN_WORKER, NAME, Fault, FaultOptions, RandomFaults

_OUTERMOST: Final = 1000
_METHODS: Final = ("slow", "exhaust_memory")


class Faults:
    """Wraps every executor of the engine, unless no fault is configured."""

    def __init__(self, options: FaultOptions) -> None:
        self._options = options

    @hookimpl
    def enginebay_configure(self, config: Any) -> None:
        """Refuse faults for whom there is nobody, and those inside workers when nothing of ours is there."""
        parallel, section = config.parallel, f"[extensions.{NAME}]"
        num_ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        for index, fault in enumerate(self._options.script):
            for what, asked, there in (
                ("rank", fault.rank, num_ranks),
                ("replica", fault.replica, parallel.data_parallel_size),
            ):
                if asked >= there:
                    raise ConfigError(
                        f"{section} script.{index}: there is no {what} {asked}: [parallel] makes {there}, "
                        f"and the first is 0"
                    )
        inside = sorted(one.value for one in self._options.kinds & IN_WORKER)
        if inside and NAME not in config.worker.extensions:
            raise ConfigError(
                f'{section} has the kind {inside[0]}, which is done inside workers: add "{NAME}" to [worker] extensions'
            )

    @hookimpl
    def enginebay_wrap_executor(self, executor: Executor[Any], context: ExecutorContext[Any]) -> Executor[Any] | None:
        """An executor whose workers, calls and answers meet the faults."""
        if not self._options.kinds:
            return None
        from enginebay.testing.faults.executor import FaultyExecutor

        return FaultyExecutor(executor, self._options)


def foresee(options: FaultOptions) -> dict[str, tuple[str, str]]:
    """The line of ``enginebay check``."""
    why = f"this engine harms itself on purpose; without [extensions.{NAME}] it does not"
    return {NAME: (f"ON: {in_words(options)}", why) if options.kinds else ("none", "neither script nor random is set")}


def in_words(options: FaultOptions) -> str:
    """``kill rank 1 with call 40; random kill, stop: 0.5 per second, seed 7``."""
    told = [_scripted(one) for one in options.script]
    if options.random is not None:
        told.append(_drawn(options.random))
    return "; ".join(told)


def _scripted(fault: Fault) -> str:
    when = f"with call {fault.after_calls}" if fault.after_calls else f"after {fault.after_seconds:g} s"
    return f"{fault.kind.value} rank {fault.rank} of replica {fault.replica} {when}"


def _drawn(random: RandomFaults) -> str:
    kinds = ", ".join(one.value for one in random.kinds)
    end = f", at most {random.limit}" if random.limit else ""
    return f"random {kinds}: {random.rate:g} per {random.per}, seed {random.seed}{end}"


def _in_worker(context: WorkerExtensionContext[NoOptions]) -> object:
    from enginebay.testing.faults.in_worker import InWorker

    return InWorker(context)


@hookimpl
def enginebay_register_extensions() -> list[ExtensionPlugin[FaultOptions]]:
    """The extension."""
    return [
        ExtensionPlugin(
            name=NAME,
            summary="Harms the engine on purpose: kills workers, drops answers, and the like.",
            options=FaultOptions,
            factory=Faults,
            wrap_order=_OUTERMOST,
            foresees=foresee,
        )
    ]


@hookimpl
def enginebay_register_worker_extensions() -> list[WorkerExtensionPlugin[NoOptions]]:
    """What it needs inside workers."""
    return [
        WorkerExtensionPlugin(
            name=NAME,
            summary="Does the faults of the extension of this name that are inside a worker.",
            options=NoOptions,
            factory=_in_worker,
            methods=_METHODS,
        )
    ]
