"""The wait until nothing is left of stopped workers: looked for again and again, said once, and given up for good."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from enginebay.engine.probes import Probes
from enginebay.engine.recovery import NoWayBack
from enginebay.engine.remains import findings_of
from enginebay.engine.supervision import Supervision
from enginebay.messages import Condition, Phase, Truth, WorkerStatus
from enginebay.status import BackOff
from enginebay.status.reclaim import Reclaim, Standing, judge

__all__ = ["RECLAIMED", "Reclaiming"]

_LOG = logging.getLogger(__name__)

RECLAIMED: Final = "Reclaimed"
_BETWEEN_LOOKS: Final = BackOff(first=0.05, most=1.0)
_WORTH_SAYING: Final = 1.0
"""Seconds of a wait after which the log says what is waited for: most are over in a moment."""


class Reclaiming:
    """One group's, in the thread that drives it. ``remains``: what workers had taken and is still there; ``here`` and
    ``probes`` as the roster has them."""

    def __init__(
        self,
        supervision: Supervision,
        remains: Callable[[], Sequence[str]],
        *,
        here: bool,
        probes: Probes | None,
    ) -> None:
        self.remains = remains
        self._supervision, self._book, self._memory = supervision, supervision.book, supervision.device_memory
        self._here, self._probes = here, probes
        self._held: dict[str, None] = {}
        self._asked = True
        self._given_up = False

    def renew(self) -> None:
        """The slots have other workers, of which nothing is held."""
        self._held, self._given_up = {}, False

    def begin(self, incarnations: Iterable[str], *, asked: bool) -> None:
        """These were stopped: a first look. ``asked``: they were told to end. What was given up stays so."""
        self._asked = asked
        if not self._given_up:
            self._held = dict.fromkeys(incarnations)
            self._look(0.0, math.inf)

    def wait(self, limit: float, meanwhile: Callable[[], None]) -> None:
        """As ``Roster.reclaim`` has it."""
        now, looks, told = self._supervision.now, 0, False
        begun = now()
        while self._held:
            waited = now() - begun
            held = self._look(waited, limit)
            looks += 1
            if not held:
                return
            if waited >= _WORTH_SAYING and not told:
                told = True
                what = "what its last worker had taken is not free yet, and is waited for, for"
                _LOG.warning("%s: %s %.3g s at most: %s", held[0][0], what, limit, held[0][1])
            meanwhile()
            self._supervision.wait(_BETWEEN_LOOKS.after(looks, 0.0))

    def _look(self, waited: float, limit: float) -> list[tuple[str, str]]:
        """The slots in which something is held, each with what it is; raises ``NoWayBack`` for what is given up."""
        remains, held, last = self.remains(), list[tuple[str, str]](), False
        for one in list(self._held):
            status = self._book.get(one)
            if status is None:  # the sinks know its end
                self._let_go(one)
                continue
            findings = [*findings_of(status.incarnation, remains, here=self._here), *self._memory.findings(one)]
            findings += [] if self._probes is None else self._probes.findings(status)
            unknown = [found.reason for found in findings if found.verdict is Reclaim.UNKNOWN]
            known = [found for found in findings if found.verdict is not Reclaim.UNKNOWN]
            standing, words = judge(known, waited=waited, limit=limit)
            if standing is Standing.FREE:
                truth = Truth.UNKNOWN if unknown else Truth.TRUE
                reclaimed = Condition(kind=RECLAIMED, truth=truth, reason=standing, message="; ".join(unknown))
                self._book.end(one, asked=self._asked, reclaimed=reclaimed)
                self._let_go(one)
                continue
            last = standing is Standing.QUARANTINED
            held.append((status.slot.name, words))
            self._say_held(status, standing, words, limit)
        if last:
            self._held, self._given_up = {}, True
            slot, words = held[0]
            what = f"{slot} is quarantined: what its last worker had taken is not free"
            raise NoWayBack(f"{what} after {limit:.3g} s: {words}")
        if not self._held and self._probes is not None:
            self._probes.forget()
        return held

    def _say_held(self, status: WorkerStatus, standing: Standing, words: str, limit: float) -> None:
        one, reason, message = status.incarnation.id, status.reason, status.message
        self._book.set_condition(one, Condition(kind=RECLAIMED, truth=Truth.FALSE, reason=standing, message=words))
        if standing is Standing.QUARANTINED:  # no other end follows: how it ended stands behind it
            reason = standing
            message = "; ".join(filter(None, (f"not free after {limit:.3g} s: {words}", message)))
        self._book.advance(one, Phase.RECLAIMING, reason=reason, message=message)

    def _let_go(self, one: str) -> None:
        self._held.pop(one, None)
        self._memory.forget(one)
