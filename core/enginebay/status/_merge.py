"""What is written where somebody else writes too: their conditions stay, and an end waits until it is one. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from enginebay.messages import OURS, WorkerStatus
from enginebay.status._conditions import could_run, settled

__all__ = ["held_back", "merged"]


def held_back(local: WorkerStatus) -> bool:
    """Whether the phase is an end that may not be told yet, since the process may still run."""
    return local.phase.terminal and could_run(local.conditions)


def merged(
    remote: WorkerStatus | None, local: WorkerStatus, owners: frozenset[str] = frozenset({OURS})
) -> WorkerStatus:
    """The status to write over ``remote``, which is of the same incarnation, or None: there is nothing.

    The conditions of ``owners`` are ours to say, all others are kept as they are found. While an end is held back the
    phase that was told before stands, with its reason and message; where none was told, nothing of the end is.
    """
    out = local
    if remote is not None:
        others = [one for one in remote.conditions if one.owner not in owners]
        own = [one for one in local.conditions if one.owner in owners]
        out = replace(out, conditions=tuple(sorted((*own, *others), key=lambda one: (one.owner, one.kind))))
    if held_back(local) and remote is not None:
        out = replace(out, phase=remote.phase, reason=remote.reason, message=remote.message)
        ready = next((one for one in remote.conditions if one.kind == "Ready" and one.owner == OURS), None)
        if ready is not None:
            out = replace(out, conditions=settled(remote.phase, out.conditions, ready.reason))
    return out
