"""New workers in the place of lost ones: the same plan, the same KV cache, under the generation that is current."""

from __future__ import annotations

from collections.abc import Callable

from enginebay import tracing
from enginebay.engine.lending import Lender
from enginebay.engine.recovery import NoWayBack
from enginebay.engine.startup.bringup import BringUp, LoadedWorkers
from enginebay.engine.startup.ground import Ground
from enginebay.errors import StartFailed
from enginebay.messages import Phase

__all__ = ["Respawn"]


class Respawn:
    """``CoreParts.respawn`` of an executor that is restartable.

    The ledger's requests were admitted for the first workers, so the new ones must have loaded the same plugins, and
    must get as many KV blocks of the same kind. Raises ``StartFailed`` when they cannot (``NoWayBack`` when no
    others could), ``WorkerLost`` when one of them ends; each phase has the deadline that it has in a start.
    """

    def __init__(self, ground: Ground, first: LoadedWorkers, num_blocks: int) -> None:
        self._ground = ground
        self._specs = [model.kv_cache_spec for model in first.models]
        self._num_blocks = num_blocks

    def __call__(self, pause: Callable[[], None], lender: Lender | None = None) -> None:
        """Stop what is left of the old workers, ``pause``, and return when new ones are warm, on the weights in force.

        The watch's ``meanwhile`` is called while something of the old ones is left, and while new ones load.
        These come from ``lender`` if one is given, else from files. Weights that were given as tensors nobody has
        kept: then there is no way back.
        """
        ground, plan, life = self._ground, self._ground.plan, self._ground.life
        with tracing.span(tracing.WORKER_RECLAIM, {tracing.WORLD_SIZE: len(plan.world.ranks)}):
            ground.roster.stop(ground.executor, ground.runtime.clock.now() + plan.config.deadlines.stop)
            ground.roster.reclaim(plan.config.recovery.reclaim, ground.watch.meanwhile)
        if life.given and lender is None:
            raise NoWayBack(
                f"the weights in force{life.named} were given as tensors, and the workers that had them are gone"
            )
        ground.roster.renew(ground.generation.current)
        pause()
        about = {tracing.WORLD_SIZE: len(plan.world.ranks), tracing.GENERATION: ground.generation.current}
        with tracing.span(tracing.WORKER_RESPAWN, about), tracing.span(tracing.EXECUTOR_LAUNCH, about) as launch:
            bring_up = BringUp(ground, traceparent=tracing.traceparent(launch))
            try:
                bring_up.launch()
            except StartFailed:
                ground.watch.raise_if_lost()  # one that was killed before its first word is lost as one after it
                raise
            workers = bring_up.load(lender)
            workers.tell(ground.hooks)
            for rank, (was, model) in enumerate(zip(self._specs, workers.models, strict=True)):
                if model.kv_cache_spec != was:
                    raise NoWayBack(
                        f"rank {rank} wants another KV cache than the worker before it: load the same model"
                    )
            bring_up.allocate(self._num_blocks)
            bring_up.warm_up()
            if life.path and lender is None:
                bring_up.update_weights(life.path, life.version)
        life.reborn()
        ground.roster.enter(Phase.READY)
        ground.roster.drain(life.draining)
