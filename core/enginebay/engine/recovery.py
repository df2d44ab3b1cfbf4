"""What follows from a setback in the workers: a pure function from the evidence to what is done about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from enginebay.errors import EnginebayError, OutOfMemory, StartFailed, WorkerFailed, WorkerHung, WorkerLost

__all__ = ["OF_WORKERS", "Action", "Bounds", "Evidence", "NoMoreStarts", "NoWayBack", "Setback", "decide", "error_type"]


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
    UNBORN = "unborn"
    """Workers that were to take the lost ones' place could not be started."""


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


class NoWayBack(StartFailed):
    """New workers cannot take the old ones' place, however often they are started."""


class NoMoreStarts(StartFailed):
    """Start after start fails at the same place in the same way: the fault is in what is started."""


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
class Bounds:
    """What may be done: so many failed steps in a row are the death; how often workers may be started is the roster's.

    ``several``: ranks compute a step together. Where one failed, the others stand somewhere in it, in a collective
    that nobody finishes: none of them can go on.
    """

    max_failed_steps: int
    restartable: bool
    stopping: bool = False
    several: bool = False


def decide(evidence: Evidence, failed_steps: int, bounds: Bounds) -> Action:
    """The action that a setback calls for; ``failed_steps``: those before it, since a token was committed or a request
    ended. Stale answers are bounded elsewhere: by ``Progress``."""
    if bounds.stopping:
        return Action.DIE
    match evidence:
        case Evidence.STALE:
            return Action.VOID
        case Evidence.FAILED if not bounds.several:
            return Action.VOID if failed_steps + 1 < bounds.max_failed_steps else Action.DIE
        case Evidence.LOST | Evidence.HUNG | Evidence.UNBORN | Evidence.FAILED:
            return Action.RESPAWN if bounds.restartable else Action.DIE


def error_type(error: BaseException) -> str:
    """``error.type`` of a step that ended of ``error``: a word for what befell its workers, else the error's class."""
    for kinds, word in _WORDS:
        if isinstance(error, kinds):
            return word
    return type(error).__name__


_WORDS: Final = (
    (WorkerLost, "worker_lost"),
    (WorkerHung, "worker_hung"),
    ((WorkerFailed, OutOfMemory), "worker_failed"),
)
