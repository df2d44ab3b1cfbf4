"""How conditions go on from one status to the next, and what a phase says of them by itself. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from enginebay.messages import OURS, Condition, Phase, Truth

__all__ = ["ALIVE", "READY", "RECLAIMED", "carried", "could_run", "settled", "with_condition"]

READY: Final = "Ready"
ALIVE: Final = "ProcessAlive"
RECLAIMED: Final = "Reclaimed"


def settled(phase: Phase, conditions: Iterable[Condition], reason: str) -> tuple[Condition, ...]:
    """The conditions, with ``Ready`` as the phase has it: an end is never shown beside a readiness that it ended."""
    truth = Truth.TRUE if phase is Phase.READY else Truth.FALSE
    ready = Condition(kind=READY, truth=truth, reason=reason or str(phase))
    return with_condition(conditions, ready)


def with_condition(conditions: Iterable[Condition], condition: Condition) -> tuple[Condition, ...]:
    """These conditions, with this one in the place of what it says anew."""
    kept = [one for one in conditions if (one.owner, one.kind) != (condition.owner, condition.kind)]
    return (*kept, condition)


def carried(old: Iterable[Condition], new: Iterable[Condition], now: float) -> tuple[Condition, ...]:
    """The new conditions, each with the time of its last change of truth: another reason or message is none.

    Time does not run backwards in them, whatever the clock on the wall does.
    """
    before = {(one.owner, one.kind): one for one in old}
    out = []
    for one in new:
        was = before.get((one.owner, one.kind))
        since = now if was is None else was.since if was.truth is one.truth else max(now, was.since)
        out.append(one if one.since == since else replace(one, since=since))
    return tuple(out)


def could_run(conditions: Iterable[Condition]) -> bool:
    """Whether the process may still be there: unless it is known to be gone."""
    return not any(one.kind == ALIVE and one.owner == OURS and one.truth is Truth.FALSE for one in conditions)
