"""The workers of one group as the status book has them: who stands in each slot, how far it is, how it ended.

The core says here what it does with its workers where it does it, so that every executor's workers have a status. All
ranks of a group live and end together: one of them lost is the end of their generation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace

from enginebay.engine.probes import Probes
from enginebay.engine.reclaiming import RECLAIMED, Reclaiming
from enginebay.engine.remains import with_process
from enginebay.engine.supervision import Supervision
from enginebay.engine.verdicts import Verdict
from enginebay.engine.watch import cause_of, describe_exit
from enginebay.errors import EnginebayError, one_line
from enginebay.interfaces import Executor, WorkerExit
from enginebay.messages import (
    Condition,
    Incarnation,
    Phase,
    SinkState,
    Slot,
    Truth,
    WorkerInfo,
    WorkerStatus,
    WorldPlan,
)
from enginebay.runtime import Entropy
from enginebay.status.latency import start_of
from enginebay.status.restarts import Ending, GiveUp, Restart

__all__ = ["BACK_OFF", "DEVICE_OK", "PROGRESSING", "RECLAIMED", "Roster", "slots_of"]

PROGRESSING: Final = "Progressing"
BACK_OFF: Final = "BackOff"
DEVICE_OK: Final = "DeviceOk"
_UNFORESEEN: Final = "device"
_RAN: Final = frozenset({Phase.READY, Phase.DEGRADED, Phase.DRAINING})


def slots_of(world: WorldPlan, device: str) -> tuple[Slot, ...]:
    """The places of the workers that this engine starts; ``device``: the kind that they compute on, "": not known."""
    group, kind = world.data_parallel_index, device or _UNFORESEEN
    return tuple(Slot(group=group, rank=one.rank, device=f"{kind}:{one.local_rank}") for one in world.own_places)


class Roster:
    """One group's. ``exited`` and ``stop`` may come from any thread, all else is the thread's that drives the group.

    ``incarnations`` are the ids of the workers in force, in the order of ``slots``.
    """

    def __init__(
        self,
        supervision: Supervision,
        slots: Sequence[Slot],
        entropy: Entropy,
        remains: Callable[[], Sequence[str]] = lambda: (),
        *,
        here: bool = True,
        probes: Probes | None = None,
    ) -> None:
        """``entropy``: where the workers' random ids are drawn; ``remains``: what they had taken and is still there;
        ``here``: all workers are started on this host, by this process or its children; ``probes``: plugins' own."""
        self.slots = tuple(slots)
        self.incarnations: tuple[str, ...] = ()
        self._supervision, self._book = supervision, supervision.book
        self._memory = supervision.device_memory
        self._ids = entropy.stream("incarnations")
        self._phase = Phase.PENDING
        self._ready_at: float | None = None
        self._first_exit: WorkerExit | None = None
        self._exit_before: WorkerExit | None = None
        self._lost = ""
        self._here = here
        self.reclaiming = Reclaiming(supervision, remains, here=here, probes=probes)
        supervision.join(self.group)

    @property
    def group(self) -> int:
        """The group's number."""
        return self.slots[0].group

    @property
    def label(self) -> str:
        """What a line of the log that is about this group begins with; "" where there is no other."""
        return self._supervision.label(self.group)

    @property
    def phase(self) -> Phase:
        """How far they have come."""
        return self._phase

    @property
    def first_exit(self) -> WorkerExit | None:
        """Of which of them the end was told first."""
        return self._first_exit

    @property
    def exit_before(self) -> WorkerExit | None:
        """The same of those whose place they took: an end may be told after what it was the cause of."""
        return self._exit_before

    def renew(self, generation: int) -> None:
        """The workers of a new generation are about to be started; those before them are gone."""
        self.incarnations = tuple(f"{self._ids.getrandbits(128):032x}" for _ in self.slots)
        restarts = self._supervision.restarts(self.slots, faulty=bool(self._lost))
        self._exit_before = self._first_exit
        self.reclaiming.renew()
        self._phase, self._ready_at, self._first_exit, self._lost = Phase.PENDING, None, None, ""
        for slot, one, number in zip(self.slots, self.incarnations, restarts, strict=True):
            incarnation = Incarnation(id=one, epoch=self._supervision.epoch, generation=generation)
            self._book.set(WorkerStatus(slot=slot, incarnation=incarnation, restarts=number))

    def enter(self, phase: Phase) -> None:
        """All of them are in that phase now; whoever has ended meanwhile stays so."""
        self._phase = phase
        if phase is Phase.READY:
            self._ready_at = self._supervision.now()
        for one in self.incarnations:
            self._book.advance(one, phase)
        if phase is Phase.READY:
            self._supervision.starts.ready(self.statuses())

    def connected(self, workers: Sequence[WorkerInfo]) -> None:
        """They have said who they are."""
        for worker in workers:
            status = self._book.get(worker.incarnation)
            if status is not None:
                self._book.set(replace(status, incarnation=with_process(status.incarnation, worker, here=self._here)))

    def found(self, workers: Sequence[WorkerInfo]) -> None:
        """They have taken their devices: each says which, and whether its slot is named by that kind."""
        for slot, incarnation, worker in zip(self.slots, self.incarnations, workers, strict=True):
            good = slot.device.partition(":")[0] in (worker.device.partition(":")[0], _UNFORESEEN)
            why = "" if good else f"it computes on {worker.device}, and not on {slot.device} as was foreseen"
            truth = Truth.TRUE if good else Truth.FALSE
            taken = Condition(kind=DEVICE_OK, truth=truth, reason=worker.device, message=why)
            self._book.set_condition(incarnation, taken)
            self._memory.taken(incarnation, worker)

    def drain(self, on: bool) -> None:
        """The group takes no new requests, or does again. Nothing changes for one that is not ready."""
        if self._phase in _RAN:
            self._phase = Phase.DRAINING if on else Phase.READY
            for one in self.incarnations:
                self._book.advance(one, self._phase)

    def exited(self, worker_exit: WorkerExit) -> None:
        """``ExecutorContext.worker_exited``."""
        if self._first_exit is None and worker_exit.incarnation in self.incarnations:
            self._first_exit = worker_exit
        self._book.terminate(
            worker_exit.incarnation,
            exit_code=worker_exit.exit_code,
            signal=worker_exit.signal,
            reason=cause_of(worker_exit),
            message=describe_exit(worker_exit),
        )

    def hung(self, why: str) -> None:
        """They make no progress."""
        self._say(Condition(kind=PROGRESSING, truth=Truth.FALSE, reason="Hung", message=why))

    def late(self, ranks: Mapping[int, tuple[Verdict, str]]) -> None:
        """These ranks take longer than they should for the step that is waited for; none: its answer has come.

        Until then they are degraded: what they have goes on, and nobody ends them for it.
        """
        if self._phase not in (Phase.READY, Phase.DEGRADED):
            return
        self._phase = Phase.DEGRADED if ranks else Phase.READY
        for slot, one in zip(self.slots, self.incarnations, strict=True):
            if (found := ranks.get(slot.rank)) is not None:
                reason, words, truth = found[0].value.capitalize(), found[1], Truth.UNKNOWN
            else:
                reason, words, truth = "InTime", "", Truth.TRUE
            self._book.set_condition(one, Condition(kind=PROGRESSING, truth=truth, reason=reason, message=words))
            if found is not None:
                self._book.advance(one, Phase.DEGRADED, reason=reason, message=words)
            else:
                self._book.advance(one, Phase.READY)

    def failed(self, error: BaseException) -> None:
        """They end of ``error``: whoever has no end of its own by then has not succeeded."""
        self._lost = str(error)

    def lost(self, error: EnginebayError) -> Restart | GiveUp:
        """They are of no use any more, because of ``error``: whether and when others take their place."""
        self.failed(error)
        first, slot = self._first_exit, self.slots[0]
        if first is not None:
            slot = self.slots[self.incarnations.index(first.incarnation)]
        now = self._supervision.now()
        return self._supervision.after(
            Ending(
                slot=slot.name,
                at=now,
                phase=self._phase,
                signature=type(error).__name__ if first is None else cause_of(first),
                ready_for=None if self._ready_at is None else now - self._ready_at,
            )
        )

    def forgive(self, others: tuple[str, ...] = ()) -> None:
        """What they ended of was a request, which is gone, and so did those in the slots of other groups."""
        self._supervision.forgive((*(slot.name for slot in self.slots), *others))

    def back_off(self, restart: Restart, why: str) -> None:
        """They are started ``restart.after`` seconds from now."""
        message = f"restart {restart.number} follows in {restart.after:.0f} s: {one_line(why, 300)}"
        self._say(Condition(kind=BACK_OFF, truth=Truth.TRUE, reason="Crashed", message=message))

    def waited(self) -> None:
        """The wait before their start is over."""
        self._say(Condition(kind=BACK_OFF, truth=Truth.FALSE, reason="Over"))

    def stop(self, executor: Executor[Any], deadline: float) -> None:
        """Stop them. Those of whom nothing is left have their end then; of others it is said what holds it back."""
        reason = "Lost" if self._lost else ""
        for one in self.incarnations:
            self._book.advance(one, Phase.TERMINATING, reason=reason, message=self._lost)
        executor.stop(deadline)
        self.reclaiming.begin(self.incarnations, asked=not self._lost)

    def reclaim(self, limit: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Return when nothing is left of those that were stopped, as far as anybody can see.

        ``meanwhile`` is called between two looks, and may raise. Raises ``NoWayBack`` when something is left after
        ``limit`` seconds: its slot is quarantined, and is not waited for once more.
        """
        self.reclaiming.wait(limit, meanwhile)

    def leave(self) -> None:
        """Others have their slots, and nobody looks any more whether something is left of them."""
        for one in self.incarnations:
            self._book.leave(one)

    def sinks(self) -> tuple[SinkState, ...]:
        """How the sinks do, which all groups of the engine share."""
        return self._supervision.sinks()

    @property
    def start_words(self) -> str:
        """How long the start took of the one of them that took longest, stage by stage; "" where that is not known."""
        samples = [sample for sample in map(start_of, self.statuses()) if sample is not None]
        return max(samples, key=attrgetter("total")).words if samples else ""

    def statuses(self) -> tuple[WorkerStatus, ...]:
        """How each stands that is known."""
        found = [self._book.get(one) for one in self.incarnations]
        return tuple(one for one in found if one is not None)

    def _say(self, condition: Condition) -> None:
        for one in self.incarnations:
            self._book.set_condition(one, condition)
