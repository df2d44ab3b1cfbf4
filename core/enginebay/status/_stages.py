"""The parts of a start as they are entered and left, and what they took. Pure.

A stage that was entered ends when another phase is. One in which the worker died stays open, and those behind it were
never entered: they have not failed.
"""

from __future__ import annotations

from msgspec.structs import replace

from enginebay.messages import Phase, Stage, WorkerStatus
from enginebay.status._transitions import STAGES

__all__ = ["gone_on", "took"]


def gone_on(stages: tuple[Stage, ...], phase: Phase, now: float) -> tuple[Stage, ...]:
    """The stages once the worker is in ``phase`` at ``now``, wall seconds."""
    if phase not in STAGES and phase is not Phase.READY:
        return stages
    if stages and stages[-1].ended is None:
        last = stages[-1]
        if last.phase is phase:
            return stages
        stages = (*stages[:-1], replace(last, ended=max(now, last.begun)))
    if phase in STAGES and not any(one.phase is phase for one in stages):
        return (*stages, Stage(phase=phase, begun=now))
    return stages


def took(status: WorkerStatus) -> dict[Phase, float]:
    """Seconds of each stage of a start that came to its end; empty before."""
    times = {one.phase: one.ended - one.begun for one in status.stages if one.ended is not None}
    return times if len(times) == len(status.stages) else {}
