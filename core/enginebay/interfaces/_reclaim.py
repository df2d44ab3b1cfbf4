"""What a probe says of something that a dead worker had taken: it is free, or not yet, or nobody can know."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Reclaim"]


class Reclaim(StrEnum):
    """What a probe says of one kind of resource."""

    RECLAIMED = "Reclaimed"
    """It was seen to be free."""
    PENDING = "Pending"
    """It is held: no new worker is started before it is free, or given up after ``[recovery] reclaim``."""
    UNKNOWN = "Unknown"
    """Nobody here can see it: new workers are started, and the condition ``Reclaimed`` is unknown, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """``what`` was looked at ("process", "descendants", "device memory"), and why it is not known to be free."""

    what: str
    verdict: Reclaim
    reason: str = ""
