"""A worker's last sign of life, as the engine's end of a line keeps it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Beat"]


@dataclass(frozen=True, slots=True)
class Beat:
    """The phase that a worker said it enters, the step where it is in one (else -1), when that was said or arrived
    (nanoseconds of this machine's monotonic clock; 0: nothing yet), and the seconds that it asked for (0: none)."""

    phase: str = ""
    step: int = -1
    at_ns: int = 0
    budget_s: float = 0.0

    @classmethod
    def said(cls, text: str, at_ns: int) -> Beat:
        """Of what ``WorkerChannel.heartbeat`` was given: "idle", or "execute_model 41" with the step's number."""
        phase, _, step = text.rpartition(" ")
        if phase and step.isdecimal() and len(step) < 19:
            return cls(phase=phase, step=int(step), at_ns=at_ns)
        return cls(phase=text, at_ns=at_ns)
