"""Whether what a dead worker had taken is free again, as probes found it: proof, or not yet, or nobody can know. Pure.

Unknown never ages into reclaimed. A slot whose resources are not proven free gets no new worker on the same device;
once it has waited too long it is quarantined, and stays fenced off even when an operator says that it may be forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from enginebay.interfaces import Finding, Reclaim

__all__ = ["Finding", "Reclaim", "Standing", "judge"]


class Standing(StrEnum):
    """What follows for the slot."""

    FREE = "Free"
    """All is proven: a new worker may start on this device."""
    WAITING = "Waiting"
    """Something is still held: look again."""
    QUARANTINED = "Quarantined"
    """It was held, or not known to be free, for longer than anybody waits."""


def judge(findings: Sequence[Finding], *, waited: float, limit: float) -> tuple[Standing, str]:
    """The standing ``waited`` seconds after the worker's end, and in words what it is that holds it back.

    ``limit``: seconds after which what is not proven free is given up. Nothing that was looked at is no proof.
    """
    open_ = [one for one in findings if one.verdict is not Reclaim.RECLAIMED]
    if findings and not open_:
        return Standing.FREE, ""
    words = "; ".join(f"{one.what}: {one.verdict}" + (f" ({one.reason})" if one.reason else "") for one in open_)
    words = words or "nothing of it was looked at"
    return (Standing.QUARANTINED if waited >= limit else Standing.WAITING), words
