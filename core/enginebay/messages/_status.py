"""What is known of one worker's life: who it is, how far it has come, and what is said of it; as sinks are given it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct


class Phase(StrEnum):
    """How far a worker's life has come. The last two are its ends."""

    PENDING = "Pending"
    STARTING = "Starting"
    INIT_DEVICE = "InitDevice"
    LOADING = "Loading"
    WARMUP = "Warmup"
    READY = "Ready"
    DEGRADED = "Degraded"
    DRAINING = "Draining"
    TERMINATING = "Terminating"
    RECLAIMING = "Reclaiming"
    FAILED = "Failed"
    SUCCEEDED = "Succeeded"

    @property
    def terminal(self) -> bool:
        """Whether nothing comes after it."""
        return self in (Phase.FAILED, Phase.SUCCEEDED)


class Truth(StrEnum):
    """What a condition says. Unknown is neither of the others, and never becomes one by age."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


OURS: Final = "enginebay"
"""The owner of the core's own conditions; those of plugins carry the plugin's name."""


class Condition(Struct, frozen=True, kw_only=True):
    """One thing that is so, is not so, or is not known. ``since``: wall seconds of the last change of ``truth``."""

    kind: str
    truth: Truth
    reason: str = ""
    message: str = ""
    since: float = 0.0
    owner: str = OURS


class Slot(Struct, frozen=True, kw_only=True, order=True):
    """A worker's place, which keeps its name whoever stands in it."""

    group: int
    rank: int
    device: str = "cpu"

    @property
    def name(self) -> str:
        """``group-0/rank-1/cpu``."""
        return f"group-{self.group}/rank-{self.rank}/{self.device}"


class Incarnation(Struct, frozen=True, kw_only=True):
    """One life in a slot. ``id`` is random and given before the spawn; the rest is known once a process is there.

    ``boot`` and ``namespace`` say in which boot and in which pid namespace ``pid`` and ``start_ticks`` mean a process:
    elsewhere nothing is judged by them. The lives of a slot are in order by ``epoch``, the number of the engine's run,
    and by ``generation``, the group's in it.
    """

    id: str
    epoch: int = 0
    generation: int = 0
    boot: str = ""
    namespace: str = ""
    pid: int = 0
    start_ticks: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """What is higher came later."""
        return self.epoch, self.generation


class Stage(Struct, frozen=True, kw_only=True):
    """A part of a start: wall seconds of its begin and its end; ``ended`` None: it is under way, or was died in."""

    phase: Phase
    begun: float
    ended: float | None = None


class WorkerStatus(Struct, frozen=True, kw_only=True):
    """All that is known of one incarnation.

    ``reason`` is a word for programs, ``message`` a line for people. ``started``: wall seconds of the first status.
    ``stages`` are those of the start that were entered. ``restarts``: how often a worker began
    in this slot after a fault; lives that began on purpose are not counted. ``heartbeat``: the last sign of life, wall
    seconds; that it is newer is no news.
    """

    slot: Slot
    incarnation: Incarnation
    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    signal: int | None = None
    started: float | None = None
    stages: tuple[Stage, ...] = ()
    conditions: tuple[Condition, ...] = ()
    restarts: int = 0
    heartbeat: float = 0.0

    def condition(self, kind: str, owner: str = OURS) -> Condition | None:
        """The condition of that kind and owner."""
        return next((one for one in self.conditions if one.kind == kind and one.owner == owner), None)


class SinkState(Struct, frozen=True, kw_only=True):
    """How a status sink does: its failed calls in a row, what the last one said, and records that it lacks."""

    name: str
    failures: int = 0
    error: str = ""
    behind: int = 0


class EngineHealth(Struct, frozen=True, kw_only=True):
    """Whether the engine does what it is asked, judged by what came of it and by no answer alone; else why not.

    ``workers``: how each stands; ``sinks``: how those do that are told so, which no engine is unhealthy for. ``wall``:
    when this was said, in seconds of the day's clock.
    """

    healthy: bool
    why: str = ""
    workers: tuple[WorkerStatus, ...] = ()
    sinks: tuple[SinkState, ...] = ()
    wall: float = 0.0


class StatusRecord(Struct, frozen=True, kw_only=True):
    """A status as a sink holds it. ``version`` counts the changes of one incarnation; ``finished``: nothing of it is
    left to reclaim, and the record may go once this is known."""

    status: WorkerStatus
    version: int
    finished: bool = False
