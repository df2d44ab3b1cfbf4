"""A status in the form in which it is compared, kept and written: bounded, in one order, to the millisecond. Pure."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from enginebay.errors import one_line
from enginebay.messages import OURS, Condition, Stage, WorkerStatus

__all__ = ["MAX_MESSAGE", "named", "normal", "same_content"]

MAX_MESSAGE: Final = 1024
"""Characters of a message; a traceback belongs into the log."""
_MAX_REASON: Final = 64
_MAX_NAME: Final = 64
_BY_NAME: Final = attrgetter("owner", "kind")


def normal(status: WorkerStatus) -> WorkerStatus:
    """Times in whole milliseconds, one line of bounded length for all words, conditions by owner and kind."""
    return replace(
        status,
        reason=one_line(status.reason, _MAX_REASON),
        message=one_line(status.message, MAX_MESSAGE),
        started=None if status.started is None else round(status.started, 3),
        heartbeat=round(status.heartbeat, 3),
        stages=tuple(map(_normal_stage, status.stages)),
        conditions=tuple(sorted(map(_normal, status.conditions), key=_BY_NAME)),
    )


def named(condition: Condition) -> Condition:
    """The condition under the names by which it is kept: what says it anew has to find it."""
    kind, owner = one_line(condition.kind, _MAX_NAME), one_line(condition.owner, _MAX_NAME)
    if (kind, owner) == (condition.kind, condition.owner):
        return condition
    return replace(condition, kind=kind, owner=owner)


def _normal(condition: Condition) -> Condition:
    reason, message = one_line(condition.reason, _MAX_REASON), one_line(condition.message, MAX_MESSAGE)
    since = round(condition.since, 3)
    if (reason, message, since) == (condition.reason, condition.message, condition.since):
        return condition
    return replace(condition, reason=reason, message=message, since=since)


def _normal_stage(stage: Stage) -> Stage:
    begun, ended = round(stage.begun, 3), None if stage.ended is None else round(stage.ended, 3)
    return stage if (begun, ended) == (stage.begun, stage.ended) else replace(stage, begun=begun, ended=ended)


def same_content(one: WorkerStatus, other: WorkerStatus, *, owners: frozenset[str] = frozenset({OURS})) -> bool:
    """Whether two normal statuses say the same; signs of life, times of conditions and others' conditions aside.

    ``owners``: whose conditions count.
    """
    return one.phase is other.phase and _content(one, owners) == _content(other, owners)


def _content(status: WorkerStatus, owners: frozenset[str]) -> WorkerStatus:
    own = tuple(replace(one, since=0.0) for one in status.conditions if one.owner in owners)
    return replace(status, heartbeat=0.0, conditions=own)
