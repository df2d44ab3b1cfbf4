"""The end of the workers: stopped by one deadline, from whatever thread, whatever the executor says to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from enginebay.engine.parts import CoreParts
from enginebay.engine.recovery import NoWayBack
from enginebay.engine.roster import Roster
from enginebay.errors import in_words, is_interrupt
from enginebay.interfaces import Executor

__all__ = ["WorkersEnd"]

_log = logging.getLogger(__name__)


class WorkersEnd:
    """Stops one group's workers. All of it may be called from any thread."""

    def __init__(self, parts: CoreParts) -> None:
        self._parts = parts
        self._deadline: float | None = None
        self._ended = False
        self.newcomer: tuple[Roster, Executor[Any]] | None = None
        """Workers that are being started to take their place, which end with them."""

    def stop_by(self, deadline: float) -> None:
        """Whatever stops the workers from now on does so by ``deadline``, in seconds of the clock."""
        self._deadline = deadline

    def cut(self) -> None:
        """Stop the workers under a call that does not end; that it fails is logged."""
        self._stop(self._gone_by())

    def stop(self) -> None:
        """Stop the workers; that it fails is logged, and keeps nothing else from its end. Idempotent."""
        if self._ended:
            return
        deadline, clock = self._gone_by(), self._parts.runtime.clock
        self._stop(deadline)
        self._do(
            "waiting until nothing of the workers is left", lambda: self._reclaim(max(0.0, deadline - clock.now()))
        )
        self._do("removing what the workers had", self._parts.release)
        self._ended = True

    def _reclaim(self, limit: float) -> None:
        try:
            self._parts.roster.reclaim(limit)
        except NoWayBack as error:  # nobody comes after them: it is said, and the engine ends all the same
            _log.warning("%s", error)

    def _stop(self, deadline: float) -> None:
        if (newcomer := self.newcomer) is not None:
            roster, executor = newcomer
            self._do("stopping the new workers", lambda: roster.stop(executor, deadline))
        self._do("stopping the workers", lambda: self._parts.roster.stop(self._parts.executor, deadline))

    def _do(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            if is_interrupt(error):
                raise
            _log.warning("%s%s failed: %s", self._parts.roster.label, what, in_words(error))

    def _gone_by(self) -> float:
        if self._deadline is not None:
            return self._deadline
        return self._parts.runtime.clock.now() + self._parts.stop_timeout
