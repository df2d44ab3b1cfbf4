"""How often a slot's worker may be started again, and how long to wait before it is. Pure.

Most crashes come once: the first restart follows at once, and each further one twice as late, up to a minute. A good
run makes all of it forgotten. Past its budget a slot is given up, and so is the engine past its own; a start that fails
twice at the same place in the same way is not tried again at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from enginebay.messages import Phase
from enginebay.status.backoff import BackOff

__all__ = ["Ending", "GiveUp", "Restart", "RestartRules", "Restarts"]

_FIRST_WAIT: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class RestartRules:
    """``per_slot`` and ``per_engine`` restarts within ``window`` seconds are allowed; ``good_run``: seconds of
    readiness after which a slot's past is forgotten; ``failed_starts``: so many starts in a row that fail at the same
    place in the same way are the last ones, and ``longest_wait``: seconds before a restart at most."""

    per_slot: int = 5
    per_engine: int = 20
    window: float = 600.0
    good_run: float = 600.0
    failed_starts: int = 2
    longest_wait: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A worker's end that nobody asked for. ``signature``: what failures of one cause have in common (the class of the
    error, the signal); ``ready_for``: seconds of readiness before it, None: it never was."""

    slot: str
    at: float
    phase: Phase
    signature: str
    ready_for: float | None = None


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Start it again ``after`` so many seconds; it is restart ``number`` of the slot since its last good run."""

    after: float
    number: int


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """It is not started again. ``at_start``: it has never run, so the fault is in what was asked for."""

    why: str
    at_start: bool = False


@dataclass
class Restarts:
    """Remembers endings as far as rules need them, and decides on each."""

    rules: RestartRules = RestartRules()
    _past: dict[str, list[Ending]] = field(default_factory=dict)

    def after(self, ending: Ending, draw: float) -> Restart | GiveUp:
        """What to do about this end; ``draw``: 0 to 1, for the jitter."""
        past = self._past.setdefault(ending.slot, [])
        if ending.ready_for is not None and ending.ready_for >= self.rules.good_run:
            past.clear()
        past.append(ending)
        last = past[-self.rules.failed_starts :]
        if len(last) == self.rules.failed_starts and all(_same_failed_start(one, ending) for one in last):
            times = {1: "once", 2: "twice"}.get(len(last), f"{len(last)} times")
            why = f"it failed {times} in {ending.phase} in the same way ({ending.signature})"
            return GiveUp(why=why, at_start=True)
        since = ending.at - self.rules.window
        of_slot = sum(one.at > since for one in past)
        of_engine = sum(one.at > since for slot in self._past.values() for one in slot)
        if of_slot > self.rules.per_slot:
            return GiveUp(why=self._history(ending, past[-of_slot:], self.rules.per_slot))
        if of_engine > self.rules.per_engine:
            recent = sorted((one for slot in self._past.values() for one in slot if one.at > since), key=_when)
            return GiveUp(why=self._history(ending, recent, self.rules.per_engine))
        wait = BackOff(first=_FIRST_WAIT, most=self.rules.longest_wait)
        return Restart(after=wait.after(len(past) - 1, draw), number=len(past))

    def forgive(self, slots: Iterable[str]) -> None:
        """What these slots ended of is known, and gone: they begin anew."""
        for slot in slots:
            self._past.pop(slot, None)

    def _history(self, ending: Ending, endings: list[Ending], allowed: int) -> str:
        told = ", ".join(
            f"{one.slot} {ending.at - one.at:.0f} s ago in {one.phase} ({one.signature})" for one in endings
        )
        return f"more than {allowed} restarts within {self.rules.window:.0f} s: {told}"


def _same_failed_start(one: Ending, other: Ending) -> bool:
    never_ran = one.ready_for is None and other.ready_for is None
    return never_ran and (one.phase, one.signature) == (other.phase, other.signature)


def _when(ending: Ending) -> float:
    return ending.at
