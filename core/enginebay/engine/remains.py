"""What is left of workers that have ended: found where this host can see it, and else said to be unknown.

Proof that a worker is gone is its executor's ``stop``, which has returned, and beyond it what we see ourselves: its
process, by a number that no other process can have, and what the manifest of the run names. Nothing is killed here.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from msgspec.structs import replace

from enginebay.messages import Incarnation, WorkerInfo
from enginebay.runtime import pid_space
from enginebay.status.reclaim import Finding, Reclaim
from enginebay.status.sinks._processes import Owner, is_gone, process_of

__all__ = ["findings_of", "with_process"]


def with_process(incarnation: Incarnation, worker: WorkerInfo, *, here: bool = True) -> Incarnation:
    """The incarnation with its process; where that is not known to be one that we could see, it is its number alone, of
    which nobody here can judge. ``here``: all workers are started on this host, by this process or its children.

    A host's name proves little: a container may have that of its host, and processes of its own.
    """
    seen = worker.space == pid_space() if worker.space else here and worker.host == socket.gethostname()
    if not seen:
        return replace(incarnation, pid=worker.pid)
    owner = process_of(worker.pid)
    return replace(
        incarnation, pid=owner.pid, boot=owner.boot, namespace=owner.namespace, start_ticks=owner.start_ticks
    )


def findings_of(incarnation: Incarnation, remains: Sequence[str], *, here: bool = True) -> list[Finding]:
    """Of a worker whose executor has stopped it; ``remains``: what the group's manifest names and is still there.

    ``here``: as ``with_process`` has it. Then the executor's ``stop`` has reaped what never said who it is; what others
    started for the executor may come to its place when it is stopped already.
    """
    found = [Finding(what="executor", verdict=Reclaim.RECLAIMED)]
    if not incarnation.pid:
        if not here:
            found.append(Finding(what="process", verdict=Reclaim.UNKNOWN, reason="it never said which process it is"))
    elif incarnation.pid != os.getpid() or not (here or incarnation.boot):  # else it was a thread of ours
        found.append(_process(incarnation))
    if remains:
        found.append(Finding(what="manifest", verdict=Reclaim.PENDING, reason=", ".join(remains)))
    return found


def _process(incarnation: Incarnation) -> Finding:
    if not incarnation.boot:
        return Finding(
            what="process",
            verdict=Reclaim.UNKNOWN,
            reason=f"pid {incarnation.pid} is not of this host, or not known to be",
        )
    owner = Owner(incarnation.boot, incarnation.namespace, incarnation.pid, incarnation.start_ticks)
    if not owner.start_ticks or is_gone(owner):  # without them it was gone when it was looked at first
        return Finding(what="process", verdict=Reclaim.RECLAIMED)
    return Finding(what="process", verdict=Reclaim.PENDING, reason=f"pid {incarnation.pid} lives")
