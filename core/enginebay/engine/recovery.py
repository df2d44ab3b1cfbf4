"""What follows from a setback in the workers: a pure function from the evidence to what is done about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from enginebay.errors import EnginebayError, StartFailed, WorkerHung, WorkerLost

__all__ = ["OF_WORKERS", "Action", "Bounds", "Evidence", "Setback", "Standing", "decide"]


class Evidence(Enum):
    """What is known of the workers when a step cannot be finished."""

    STALE = "stale"
    """The answer was to another call, step or generation."""
    FAILED = "failed"
    """A living worker raised: an exception of the runner's, or no memory for this step."""
    LOST = "lost"
    """A worker has ended."""
    HUNG = "hung"
    """No answer came by the deadline."""


class Action(Enum):
    """What is done about a setback."""

    VOID = "void"
    """The steps in flight never happened: the next generation begins, on the same workers."""
    RESPAWN = "respawn"
    """The same, on workers that are started anew."""
    DIE = "die"
    """The engine ends, with the setback's error as the root cause."""


OF_WORKERS: Final = (WorkerLost, WorkerHung, StartFailed)
"""The errors of a step that a new generation may be an answer to; ``WorkerFailed`` and ``OutOfMemory`` are among them.
Every other one (damaged bytes, an executor's or a scheduler's own fault) is the engine's death at once."""


class Setback(Exception):
    """A step that cannot be finished: the evidence, and the error that the engine dies of if nothing is done.

    Its text is what the log says of it: the error's, unless ``what`` is given.
    """

    def __init__(self, evidence: Evidence, error: EnginebayError, what: str = "") -> None:
        super().__init__(what or str(error))
        self.evidence = evidence
        self.error = error

    @classmethod
    def of(cls, error: EnginebayError) -> Setback:
        """The setback that one of ``OF_WORKERS`` is."""
        if isinstance(error, WorkerLost):
            return cls(Evidence.LOST, error)
        return cls(Evidence.HUNG if isinstance(error, WorkerHung) else Evidence.FAILED, error)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How many failed steps and respawns there were since the last token was committed or request ended."""

    failed_steps: int = 0
    respawns: int = 0

    def counting(self, action: Action, evidence: Evidence) -> Standing:
        """The standing once ``action`` is taken."""
        if action is Action.RESPAWN:
            return replace(self, respawns=self.respawns + 1)
        if evidence is Evidence.FAILED:
            return replace(self, failed_steps=self.failed_steps + 1)
        return self


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What may be done: so many failed steps in a row are the death, so many respawns in a row are allowed.

    ``several``: ranks compute a step together. Where one failed, the others stand somewhere in it, in a collective
    that nobody finishes: none of them can go on.
    """

    max_failed_steps: int
    max_respawns: int
    restartable: bool
    stopping: bool = False
    several: bool = False


def decide(evidence: Evidence, standing: Standing, bounds: Bounds) -> Action:
    """The action that a setback calls for. Stale answers are bounded elsewhere: by ``Progress``."""
    if bounds.stopping:
        return Action.DIE
    match evidence:
        case Evidence.STALE:
            return Action.VOID
        case Evidence.FAILED if not bounds.several:
            return Action.VOID if standing.failed_steps + 1 < bounds.max_failed_steps else Action.DIE
        case Evidence.LOST | Evidence.HUNG | Evidence.FAILED:
            again = bounds.restartable and standing.respawns < bounds.max_respawns
            return Action.RESPAWN if again else Action.DIE
