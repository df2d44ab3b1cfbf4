"""New workers in the place of lost ones: the same plan, the same KV cache, under the generation that is current."""

from __future__ import annotations

from typing import Any

from enginebay import tracing
from enginebay.engine.bringup import BringUp, LoadedWorkers
from enginebay.engine.plan import Plan
from enginebay.engine.replies import Generation
from enginebay.engine.watch import WorkerWatch
from enginebay.errors import StartFailed
from enginebay.interfaces import Executor
from enginebay.plugins import Hooks
from enginebay.runtime import Runtime

__all__ = ["Respawn"]


class Respawn:
    """``CoreParts.respawn`` of an executor that is restartable.

    The ledger's requests were admitted for the first workers, so the new ones must have loaded the same plugins, and
    must get as many KV blocks of the same kind. Raises ``StartFailed`` when they cannot; each phase has the deadline
    that it has in a start.
    """

    def __init__(
        self,
        plan: Plan,
        executor: Executor[Any],
        runtime: Runtime,
        hooks: Hooks,
        generation: Generation,
        watch: WorkerWatch,
        first: LoadedWorkers,
        num_blocks: int,
    ) -> None:
        self._plan = plan
        self._executor = executor
        self._runtime = runtime
        self._hooks = hooks
        self._generation = generation
        self._watch = watch
        self._specs = [model.kv_cache_spec for model in first.models]
        self._num_blocks = num_blocks

    def __call__(self) -> None:
        """Stop what is left of the old workers, and return when the new ones are warm."""
        self._executor.stop(self._runtime.clock.now() + self._plan.config.deadlines.stop)
        with tracing.span(tracing.EXECUTOR_LAUNCH, {tracing.WORLD_SIZE: len(self._plan.world.ranks)}) as launch:
            launch.set_attribute(tracing.GENERATION, self._generation.current)
            bring_up = BringUp(
                self._plan,
                self._executor,
                self._runtime,
                watch=self._watch,
                generation=self._generation.current,
                traceparent=tracing.traceparent(launch),
            )
            bring_up.launch()
            workers = bring_up.load()
            workers.tell(self._hooks)
            for rank, (was, model) in enumerate(zip(self._specs, workers.models, strict=True)):
                if model.kv_cache_spec != was:
                    raise StartFailed(
                        f"rank {rank} wants another KV cache than the worker before it: load the same model"
                    )
            bring_up.allocate(self._num_blocks)
            bring_up.warm_up()
