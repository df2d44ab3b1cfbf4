"""A group of one worker that was stopped, and of which something is left: how that is waited for, and told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from enginebay.engine.roster import RECLAIMED, Roster, slots_of
from enginebay.engine.supervision import Supervision
from enginebay.errors import WorkerLost
from enginebay.messages import Phase, WorkerInfo, WorldPlan
from enginebay.runtime import Runtime


class Stopped:
    """Its roster, over a clock that waits as it is told to. ``remains``: as the roster asks for them."""

    def __init__(
        self,
        runtime: Runtime,
        supervision: Supervision,
        device: str,
        *,
        remains: Callable[[], Sequence[str]] = lambda: (),
        found: Callable[[str], WorkerInfo] | None = None,
        lost: bool = False,
    ) -> None:
        """``found``: what the worker of that incarnation has said of its device; ``lost``: nobody told it to stop."""
        self.roster = Roster(supervision, slots_of(WorldPlan(), device), runtime.entropy, remains)
        self.roster.renew(0)
        if found is not None:
            (one,) = self.roster.incarnations
            self.roster.found([found(one)])
        self.roster.enter(Phase.READY)
        if lost:
            self.roster.lost(WorkerLost("x"))
        self.roster.stop(self, runtime.clock.now())  # type: ignore[arg-type]  # all that is asked of it is to stop

    def stop(self, deadline: float) -> None:
        """Its executor's."""

    def said(self) -> tuple[str, str, str]:
        """The phase, whether it is reclaimed, and why not."""
        (status,) = self.roster.statuses()
        condition = status.condition(RECLAIMED)
        assert condition is not None
        return status.phase, condition.truth, f"{condition.reason}: {condition.message}"
