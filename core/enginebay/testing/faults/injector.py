"""Does the faults of one replica that are done in the engine's process, and says of each that it was done."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from enginebay.messages import Replies, WorkerInfo
from enginebay.runtime import Runtime
from enginebay.testing.faults.agenda import Agenda
from enginebay.testing.faults.alarms import Alarms
from enginebay.testing.faults.answers import Answers
from enginebay.testing.faults.options import ON_PROCESSES, Fault, FaultKind, FaultOptions
from enginebay.testing.faults.shm import fill_shm
from enginebay.testing.faults.victims import Victims

__all__ = ["Injector"]

_LOG: Final = logging.getLogger("enginebay.faults")


class Injector:
    """One for each executor that is wrapped; holds no executor, so that one can be dropped. Thread-safe."""

    def __init__(self, options: FaultOptions, runtime: Runtime) -> None:
        self._options = options
        self._runtime = runtime
        self._clock = runtime.clock
        self._lock = threading.RLock()
        self._alarms = Alarms(runtime)
        self._answers = Answers()
        self._agenda: Agenda | None = None
        self._replica = 0
        self._begun: float | None = None
        self._victims: Victims | None = None
        self._num_injected = 0

    def begin(self, replica: int, ranks: Sequence[int]) -> None:
        """The replica starts, for the first time or again."""
        with self._lock:
            if self._agenda is None:
                self._replica, self._agenda = replica, Agenda(self._options, replica, ranks)

    def stand(self, workers: Sequence[WorkerInfo]) -> None:
        """Its workers have said HELLO. Raises ``ConfigError`` when they cannot be harmed as the options want."""
        victims = Victims(workers) if self._options.kinds & ON_PROCESSES else Victims(())
        with self._lock:
            self._victims = victims
        self._look_at_the_clock()

    def due_with(self, call: str, ranks: Sequence[int]) -> list[Fault]:
        """What is due with a call to these ranks; nothing, if such calls are not counted. The first begins the time."""
        if self._options.call not in (call, "any"):
            return []
        with self._lock:
            if self._agenda is None:
                return []
            begins = self._begun is None
            if self._begun is None:
                self._begun = self._clock.now()
            due = self._agenda.at_call(ranks, self._clock.now() - self._begun)
        if begins:
            self._look_at_the_clock()
        return due

    def harm(self, fault: Fault) -> None:
        """Do what is done to processes and to the machine."""
        with self._lock:
            victims = self._victims
        if fault.kind is FaultKind.FILL_SHM:
            self._fill_shm(fault)
        elif victims is None or not (victims.kill if fault.kind is FaultKind.KILL else victims.stop)(fault.rank):
            self.say(fault, "there is no such process now: nothing was done")
        elif fault.kind is FaultKind.STOP and fault.seconds:
            self.tell(fault, f"for {fault.seconds:g} s")
            self._after(fault.seconds, lambda: victims.go_on(fault.rank))
        else:
            self.tell(fault, "for good" if fault.kind is FaultKind.STOP else "")

    def bend(self, fault: Fault, future: Future[Replies], call: str) -> Future[Replies]:
        """Do what is done to an answer; returns what the engine is to wait for."""
        match fault.kind:
            case FaultKind.FAIL:
                self.tell(fault, call)
                return self._answers.fail(future, fault.rank, call)
            case FaultKind.DROP_REPLY:
                self.tell(fault, call)
                return self._answers.drop(future, fault.rank)
            case _:
                self.tell(fault, f"{call} by {fault.seconds:g} s")
                return self._answers.delay(future, lambda deliver: self._after(fault.seconds, deliver))

    def tell(self, fault: Fault, how: str = "") -> None:
        """One line for a fault that was injected."""
        with self._lock:
            self._num_injected += 1
            number = self._num_injected
        where = "" if fault.kind is FaultKind.FILL_SHM else f" rank {fault.rank}"
        told = f" ({how})" if how else ""
        _LOG.warning("fault %d of replica %d: %s%s%s", number, self._replica, fault.kind.value, where, told)

    def say(self, fault: Fault, what: str) -> None:
        """One line for a fault that was due and is not there."""
        _LOG.warning("no fault of replica %d: %s rank %d: %s", self._replica, fault.kind.value, fault.rank, what)

    def rest(self) -> None:
        """The workers are gone, until the next start: nothing stays as a fault has left it. Idempotent."""
        with self._lock:
            victims, self._victims = self._victims, None
        if victims is not None:
            victims.close()
        self._alarms.close()
        self._answers.end()

    def _after(self, seconds: float, act: Callable[[], object]) -> None:
        self._alarms.at(self._clock.now() + seconds, act)

    def _fill_shm(self, fault: Fault) -> None:
        try:
            taken, give_back = fill_shm(fault.bytes)
        except OSError as error:
            self.say(fault, f"shared memory cannot be filled: {error}")
            return
        self.tell(fault, f"{taken} bytes for {fault.seconds:g} s")
        self._after(fault.seconds, give_back)

    def _look_at_the_clock(self) -> None:
        """Do what is due by now, while there are workers, and come again when the next one is."""
        with self._lock:
            begun = self._begun
            if self._agenda is None or begun is None or self._victims is None:
                return
            due = self._agenda.at_time(self._clock.now() - begun)
            when = self._agenda.next_time()
        for fault in due:
            self.harm(fault)
        if when is not None:
            self._alarms.at(begun + when, _if_there(weakref.WeakMethod(self._look_at_the_clock)))


def _if_there(method: weakref.WeakMethod[Callable[[], None]]) -> Callable[[], None]:
    """Calls it, unless its object is gone: an alarm does not keep the executor's half alive."""

    def call() -> None:
        there = method()
        if there is not None:
            there()

    return call
