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
        """Of what ``WorkerChannel.heartbeat`` was given: "idle", "execute_model 41" with the step's number, either of
        them with "+600" behind it where the worker asks for so many seconds."""
        text, budget = _number_behind(text, "+")
        phase, step = _number_behind(text, "")
        return cls(phase=phase, step=-1 if step is None else step, at_ns=at_ns, budget_s=float(budget or 0))


def _number_behind(text: str, sign: str) -> tuple[str, int | None]:
    rest, _, last = text.rpartition(" ")
    number = last.removeprefix(sign)
    if rest and last.startswith(sign) and number.isdecimal() and number.isascii() and len(number) < 19:
        return rest, int(number)
    return text, None
