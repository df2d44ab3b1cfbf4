"""The statuses of all workers as this engine knows them: many write, under one lock, and each change has a number.

What a sink holds is a projection of this. Setting costs a few microseconds and waits for nobody: a change is stored,
and whoever writes to sinks is woken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from enginebay.messages import OURS, Condition, Phase, Slot, StatusRecord, Truth, WorkerStatus
from enginebay.status._conditions import ALIVE, carried, settled, with_condition
from enginebay.status._normal import named, normal, same_content
from enginebay.status._stages import gone_on
from enginebay.status._transitions import may_follow

__all__ = ["Entry", "StatusBook"]

_LOG = logging.getLogger(__name__)

_ENDING = frozenset({Phase.TERMINATING, Phase.RECLAIMING, Phase.FAILED, Phase.SUCCEEDED})
_OVER: Final = 3
"""Lives of one slot of which nothing is left, and whose ends some sink has yet to be told: so many are kept."""


@dataclass(slots=True)
class Entry:
    """One incarnation: its record, when it came to its version (monotonic seconds), and the sinks that are done with
    it. ``left``: nobody looks any more whether something is left of it."""

    record: StatusRecord
    changed: float
    done: frozenset[str] = frozenset()
    left: bool = False

    @property
    def status(self) -> WorkerStatus:
        """The status itself."""
        return self.record.status


class StatusBook:
    """All incarnations by id. Every method may be called from any thread.

    ``now`` is monotonic, ``wall`` the time of day, both in seconds; ``changed`` is called after each change, with the
    lock given back. ``num_illegal`` counts updates that were refused since no worker's life goes so.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float],
        wall: Callable[[], float],
        lock: AbstractContextManager[object],
        changed: Callable[[], None] = lambda: None,
        owners: Collection[str] = (),
        sinks: Collection[str] = (),
    ) -> None:
        """``owners``: whose conditions are set here, beside the core's own. ``sinks``: the names of those that are told
        of each end before it is forgotten."""
        self._now, self._wall, self._lock, self._changed = now, wall, lock, changed
        self.owners = frozenset(
            {OURS, *(named(Condition(kind="", truth=Truth.TRUE, owner=one)).owner for one in owners)}
        )
        self._sinks = frozenset(sinks)
        self._entries: dict[str, Entry] = {}
        self.num_illegal = 0

    def get(self, incarnation_id: str) -> WorkerStatus | None:
        """The status of that incarnation."""
        with self._lock:
            entry = self._entries.get(incarnation_id)
            return None if entry is None else entry.status

    def entries(self) -> list[Entry]:
        """Copies of all entries, in the order in which they came: what is written is written without the lock."""
        with self._lock:
            return [Entry(one.record, one.changed, one.done, one.left) for one in self._entries.values()]

    def present(self) -> dict[Slot, WorkerStatus]:
        """Of each slot the newest incarnation."""
        found: dict[Slot, WorkerStatus] = {}
        for entry in self.entries():
            status = entry.status
            held = found.get(status.slot)
            if held is None or status.incarnation.order >= held.incarnation.order:
                found[status.slot] = status
        return found

    def set(self, status: WorkerStatus, *, force: bool = False) -> bool:
        """Take a status; whether it was one. ``force``: wake the writer even though nothing changed.

        One that no life goes through is refused whole, counted and logged: nothing of it is kept.
        """
        conditions = {(one.owner, one.kind): one for one in map(named, status.conditions)}
        with self._lock:
            status = replace(status, conditions=tuple(conditions.values()))
            accepted = self._apply(status, force=force, finished=False)
        return self._told(accepted)

    def advance(self, incarnation_id: str, phase: Phase, *, reason: str = "", message: str = "") -> bool:
        """The same incarnation in another phase; one that is ending is past that, and it is False."""
        with self._lock:
            entry = self._entries.get(incarnation_id)
            old = None if entry is None else entry.status.phase
            if entry is None or (old in _ENDING and not may_follow(old, phase)):
                return False
            status = replace(entry.status, phase=phase, reason=reason, message=message)
            accepted = self._apply(status, force=False, finished=False)
        return self._told(accepted)

    def set_condition(self, incarnation_id: str, condition: Condition) -> bool:
        """Say one thing of a worker; ignored, and False, for an incarnation that is not known or when it is no news.

        By the incarnation, and not the slot: what is said late of an old one cannot touch its successor.
        """
        condition = named(condition)
        with self._lock:
            entry = self._entries.get(incarnation_id)
            if entry is None or condition.owner not in self.owners:
                return False
            status = replace(entry.status, conditions=with_condition(entry.status.conditions, condition))
            accepted = self._apply(status, force=False, finished=False)
        return self._told(accepted)

    def terminate(
        self,
        incarnation_id: str,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        reason: str = "",
        message: str = "",
    ) -> bool:
        """Its process has ended, as is known or must be assumed: missing information is failure, never success.

        An exit code that is known is kept. The phase becomes Reclaiming, and from there what the end was. False for an
        incarnation that is not known, and where its end was told as a success and this says that it was none.
        """
        with self._lock:
            entry = self._entries.get(incarnation_id)
            if entry is None or (entry.status.phase is Phase.SUCCEEDED and (exit_code or signal is not None)):
                return False
            old = entry.status
            if old.exit_code is not None:
                exit_code = old.exit_code
            if old.signal is not None:
                signal = old.signal
            unknown = exit_code is None and signal is None
            status = replace(
                old,
                phase=old.phase if old.phase.terminal else Phase.RECLAIMING,
                exit_code=exit_code,
                signal=signal,
                reason=reason or old.reason or ("Unknown" if unknown else "Exited"),
                message=message or old.message,
                conditions=with_condition(old.conditions, _gone(reason or "Exited")),
            )
            accepted = self._apply(status, force=True, finished=False)
        return self._told(accepted)

    def end(self, incarnation_id: str, *, asked: bool, reclaimed: Condition | None = None) -> bool:
        """Nothing of it is left: the phase is the end that it was, and the record may go once sinks know.

        ``asked``: it was told to end. That is a success with exit code 0, and where it lived until it was told, unless
        its end is known to be another; anything else is none. ``reclaimed``: what is said of that nothing is left.
        """
        with self._lock:
            entry = self._entries.get(incarnation_id)
            if entry is None:
                return False
            old = entry.status
            phase = old.phase
            unknown = old.exit_code is None and old.signal is None
            stopped = asked and unknown and phase is Phase.TERMINATING
            if not phase.terminal:
                good = stopped or (asked and old.exit_code == 0 and old.signal is None)
                phase = Phase.SUCCEEDED if good else Phase.FAILED
            reason = old.reason or ("Stopped" if stopped else "Unknown" if unknown else str(phase))
            conditions = with_condition(old.conditions, _gone(reason))
            if reclaimed is not None:
                conditions = with_condition(conditions, reclaimed)
            status = replace(old, phase=phase, reason=reason, conditions=conditions)
            accepted = self._apply(status, force=True, finished=True)
        return self._told(accepted)

    def leave(self, incarnation_id: str) -> None:
        """Its end will not be told here: others need not wait for it before they are written in its slot's place."""
        with self._lock:
            entry = self._entries.get(incarnation_id)
            if entry is None or entry.record.finished:
                return
            entry.left = True
        self._changed()

    def let_go(self, incarnation_id: str, sink: str) -> None:
        """That sink has been told the end of it, and holds nothing of it any more. Dropped once all have said so."""
        with self._lock:
            entry = self._entries.get(incarnation_id)
            if entry is None:
                return
            entry.done |= {sink}
            if entry.done >= self._sinks:
                del self._entries[incarnation_id]

    def _told(self, accepted: bool | None) -> bool:
        """None: it is no news."""
        if accepted:
            self._changed()
        return accepted is not False

    def _apply(self, status: WorkerStatus, *, force: bool, finished: bool) -> bool | None:
        """Under the lock: True stored, None no news, False refused."""
        key = status.incarnation.id
        entry = self._entries.get(key)
        old = None if entry is None else entry.record
        if old is not None and (fault := _fault(old.status, status)):
            self.num_illegal += 1
            _LOG.warning("%s: %s", status.slot.name, fault)
            return False
        if old is not None and old.finished and not finished:
            finished = True  # a latch
        wall = self._wall()
        before: Iterable[Condition] = () if old is None else old.status.conditions
        started = status.started if old is None or old.status.started is None else old.status.started
        status = normal(
            replace(
                status,
                started=wall if started is None else started,
                stages=gone_on(() if old is None else old.status.stages, status.phase, wall),
                conditions=carried(before, settled(status.phase, status.conditions, status.reason), wall),
            )
        )
        if entry is None or old is None:
            if self._is_over(status):
                return None
            self._succeed(status)
            version = 1
        elif not force and old.finished == finished and same_content(old.status, status, owners=self.owners):
            entry.record = replace(old, status=replace(old.status, heartbeat=status.heartbeat))
            return None
        else:
            version = old.version + 1
        record = StatusRecord(status=status, version=version, finished=finished)
        self._entries[key] = Entry(record, self._now(), left=entry is not None and entry.left)
        return True

    def _is_over(self, status: WorkerStatus) -> bool:
        """Whether a later life has its slot, and it is told late of one that nobody knew."""
        order = status.incarnation.order
        others = (entry.status for entry in self._entries.values())
        return any(other.slot == status.slot and other.incarnation.order > order for other in others)

    def _succeed(self, status: WorkerStatus) -> None:
        """A new life in a slot: of those before it of which nothing is left the last few stay until sinks know."""
        order, over = status.incarnation.order, list[str]()
        for key, entry in self._entries.items():
            if entry.record.finished and entry.status.slot == status.slot and entry.status.incarnation.order <= order:
                over.append(key)
        for key in over[:-_OVER] if self._sinks else over:
            del self._entries[key]


def _fault(old: WorkerStatus, new: WorkerStatus) -> str:
    """Why the new status cannot be the next of this incarnation."""
    if new.slot != old.slot:
        return f"incarnation {new.incarnation.id} stands in this slot, and a status says {new.slot.name}"
    if not may_follow(old.phase, new.phase):
        return f"incarnation {new.incarnation.id} is {old.phase}, and cannot become {new.phase}"
    if old.exit_code is not None and new.exit_code != old.exit_code:
        return f"incarnation {new.incarnation.id} ended with code {old.exit_code}, and a status says {new.exit_code}"
    return ""


def _gone(reason: str) -> Condition:
    return Condition(kind=ALIVE, truth=Truth.FALSE, reason=reason)
