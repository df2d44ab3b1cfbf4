"""Which phase may follow which. Pure.

A start goes forward stage by stage, and may leave stages out; ready and degraded change into each other; whatever lives
may end; and an end is the end.
"""

from __future__ import annotations

from typing import Final

from enginebay.messages import Phase

__all__ = ["STAGES", "may_follow"]

STAGES: Final = (Phase.STARTING, Phase.INIT_DEVICE, Phase.LOADING, Phase.WARMUP)
"""The parts of a start, in their order."""

_START: Final = (Phase.PENDING, *STAGES, Phase.READY)
_SERVING: Final = frozenset({Phase.READY, Phase.DEGRADED, Phase.DRAINING})
_ENDING: Final = (Phase.TERMINATING, Phase.RECLAIMING)


def may_follow(old: Phase, new: Phase) -> bool:
    """Whether a worker in phase ``old`` may be in phase ``new`` next; the same one always may."""
    if old is new:
        return True
    if old.terminal:
        return False
    if new is Phase.FAILED:
        return True
    if new is Phase.SUCCEEDED:  # only of what was asked to end, or has drained
        return old in _ENDING or old is Phase.DRAINING
    if new in _ENDING:
        return old is not Phase.RECLAIMING
    if old in _ENDING:
        return False
    if new is Phase.DEGRADED or new is Phase.DRAINING:
        return old in _SERVING or old in STAGES
    if old in _SERVING:
        return new is Phase.READY
    return _START.index(new) > _START.index(old)
