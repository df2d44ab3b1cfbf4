"""A status in the form in which it is compared, kept and written: bounded, in one order, to the millisecond. Pure."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from enginebay.errors import one_line
from enginebay.messages import OURS, Condition, WorkerStatus

__all__ = ["MAX_MESSAGE", "normal", "same_content"]

MAX_MESSAGE: Final = 1024
"""Characters of a message; a traceback belongs into the log."""
_MAX_REASON: Final = 64


def normal(status: WorkerStatus) -> WorkerStatus:
    """Times in whole milliseconds, one line of bounded length for each message, conditions by owner and kind."""
    return replace(
        status,
        reason=one_line(status.reason, _MAX_REASON),
        message=one_line(status.message, MAX_MESSAGE),
        started=None if status.started is None else round(status.started, 3),
        heartbeat=round(status.heartbeat, 3),
        stages=tuple(
            replace(one, begun=round(one.begun, 3), ended=None if one.ended is None else round(one.ended, 3))
            for one in status.stages
        ),
        conditions=tuple(sorted(map(_normal, status.conditions), key=lambda one: (one.owner, one.kind))),
    )


def _normal(condition: Condition) -> Condition:
    return replace(
        condition,
        reason=one_line(condition.reason, _MAX_REASON),
        message=one_line(condition.message, MAX_MESSAGE),
        since=round(condition.since, 3),
    )


def same_content(one: WorkerStatus, other: WorkerStatus, *, owners: frozenset[str] = frozenset({OURS})) -> bool:
    """Whether two normal statuses say the same; signs of life, times of conditions and others' conditions aside.

    ``owners``: whose conditions count.
    """
    return _content(one, owners) == _content(other, owners)


def _content(status: WorkerStatus, owners: frozenset[str]) -> WorkerStatus:
    own = tuple(replace(one, since=0.0) for one in status.conditions if one.owner in owners)
    return replace(status, heartbeat=0.0, conditions=own)
