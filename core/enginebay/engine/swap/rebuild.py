"""How a group's parts are made again: with another scheduler over the same workers, or with workers of another plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from enginebay import tracing
from enginebay.engine.parts import CoreParts, Observers
from enginebay.engine.startup.bringup import BringUp
from enginebay.engine.startup.core_parts import core_parts
from enginebay.engine.startup.ground import Ground, lay_ground
from enginebay.engine.startup.plan import Plan
from enginebay.engine.startup.standing import Standing, make_ready
from enginebay.engine.supervision import Supervision
from enginebay.engine.swap.room import no_room
from enginebay.engine.swap.wanted import needs_workers, wanted
from enginebay.errors import CapabilityError, EngineDead
from enginebay.messages import Scale, Swap
from enginebay.plugins import PluginHost
from enginebay.text import Tokenizer
from enginebay.transport.memory import available_bytes

__all__ = ["Frame", "Rebuild"]

_HURRY_SECONDS: Final = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """What a group has whatever plan is in force: its plugins' host, its tokenizer, and who is told of it."""

    tokenizer: Tokenizer
    host: PluginHost
    observers: Observers
    supervision: Supervision


class Rebuild:
    """``CoreParts.rebuild``: of the group whose parts are those of ``ground`` and ``standing``.

    Nothing here is undone by itself: parts that were started and are not taken have a ``rebuild`` of their own, whose
    ``retire`` and ``leave`` end them.
    """

    def __init__(self, frame: Frame, ground: Ground, standing: Standing) -> None:
        self._frame = frame
        self._ground = ground
        self._standing = standing

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._ground.plan

    def wanted(self, command: Swap | Scale) -> Plan:
        """The plan that is asked for. Raises ``InvalidRequest``, ``CapabilityError`` or another ``ConfigError``."""
        plan = wanted(command, self.plan, self._frame.host)
        if self.needs_workers(plan):
            for one in (self.plan.executor.plugin, plan.executor.plugin):
                if not one.capabilities.restartable:
                    raise CapabilityError(
                        f"executor '{one.name}' does not start workers again, so these cannot be exchanged while the "
                        "engine runs: start it anew with the other config"
                    )
            if self._ground.life.given:
                raise CapabilityError(
                    f"the weights in force{self._ground.life.named} were given as tensors, and new workers could not "
                    "have them: update the weights from a folder first"
                )
        return plan

    def is_in_force(self, plan: Plan) -> bool:
        """Whether nothing would change."""
        same = plan.scheduler.identity == self.plan.scheduler.identity and plan.depth == self.plan.depth
        return same and not self.needs_workers(plan)

    def needs_workers(self, plan: Plan) -> bool:
        """Whether the workers of now are none of that plan."""
        return needs_workers(self.plan, plan, windows=self._standing.budget.shape is not None)

    def no_room(self, plan: Plan) -> str:
        """Why the workers of now have to go before those of that plan come; "": they need not."""
        return no_room(self.plan, plan, self._standing, available_bytes())

    def with_scheduler(self, plan: Plan, before: CoreParts) -> CoreParts:
        """The same workers under the scheduler of ``plan``."""
        return self._parts(dataclasses.replace(self._ground, plan=plan), self._standing, before)

    def with_workers(
        self, plan: Plan, before: CoreParts, generation: int, begun: Callable[[Ground], None]
    ) -> CoreParts:
        """Start the workers of ``plan`` under that generation; ``begun`` is told of them before the first is spawned.

        Raises what a start raises; nothing of it is left then.
        """
        runtime = self._ground.runtime
        branch = dataclasses.replace(runtime, entropy=runtime.entropy.branch(f"generation {generation}"))
        laid, _ = lay_ground(
            plan,
            branch,
            self._frame.host.hooks,
            self._frame.supervision,
            generation=generation,
        )
        ground = dataclasses.replace(laid, runtime=runtime, life=self._ground.life, at_end=self._ground.at_end)
        try:
            begun(ground)
            with tracing.span(tracing.EXECUTOR_LAUNCH, {tracing.WORLD_SIZE: len(plan.world.ranks)}) as launch:
                launch.set_attribute(tracing.GENERATION, generation)
                ground.roster.renew(generation)
                bring_up = BringUp(ground, traceparent=tracing.traceparent(launch))
                bring_up.launch()
                standing = make_ready(ground, bring_up, None, None)
            ground.roster.drain(ground.life.draining)
            return self._parts(ground, standing, before)
        except BaseException as error:
            ground.roster.failed(error)
            try:
                self._stop(ground, in_a_hurry=isinstance(error, EngineDead))
            finally:
                ground.roster.leave()
                ground.release()
            raise

    def retire(self) -> None:
        """Stop the workers of now and wait until nothing is left of them; others have their place, or will.

        Raises ``NoWayBack`` when something is left after ``[recovery] reclaim``.
        """
        self._stop(self._ground)
        self._ground.roster.reclaim(self.plan.config.recovery.reclaim, self._ground.watch.meanwhile)

    def leave(self) -> None:
        """Give back what was taken for the workers of now, which have ended for good."""
        self._ground.roster.leave()
        self._ground.release()

    def _stop(self, ground: Ground, *, in_a_hurry: bool = False) -> None:
        """``in_a_hurry``: the engine ends, and they have done nothing yet that they could end well."""
        seconds = ground.plan.config.deadlines.stop
        if in_a_hurry:
            seconds = min(seconds, _HURRY_SECONDS)
        ground.roster.stop(ground.executor, ground.runtime.clock.now() + seconds)

    def _parts(self, ground: Ground, standing: Standing, before: CoreParts) -> CoreParts:
        parts = core_parts(
            ground,
            standing,
            self._frame.tokenizer,
            observers=self._frame.observers,
            agreement=None,
            before=before,
        )
        return dataclasses.replace(parts, rebuild=Rebuild(self._frame, ground, standing))
