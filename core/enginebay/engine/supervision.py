"""What the groups of one engine share of their supervision: how workers stand, and how often any may start again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from enginebay.engine.device_memory import DeviceMemory, Holders, holders_by_nvml
from enginebay.interfaces import StatusSink
from enginebay.messages import SinkState, Slot
from enginebay.runtime import Runtime
from enginebay.status import StartTimes, StatusManager
from enginebay.status.restarts import Ending, GiveUp, Restart, RestartRules, Restarts

__all__ = ["LAST_WORDS", "Supervision"]

LAST_WORDS: Final = 2.0
"""Seconds that an engine which ends waits for its sinks: they are told what they take in it."""


class Supervision:
    """One engine's. ``epoch`` numbers its run among all of this user. Every method may be called from any thread.

    ``starts`` has how long its workers took to become ready.
    """

    def __init__(
        self,
        runtime: Runtime,
        sinks: Mapping[str, StatusSink[Any]],
        *,
        rules: RestartRules | None = None,
        epoch: int = 0,
        holders: Holders = holders_by_nvml,
    ) -> None:
        self.manager = StatusManager(runtime, sinks)
        self.book = self.manager.book
        self.epoch = epoch
        self.starts = StartTimes(runtime.lock())
        self._runtime, self._clock = runtime, runtime.clock
        self._restarts = Restarts(rules or RestartRules())
        self.device_memory = DeviceMemory(runtime, holders)
        self._anew: dict[Slot, int] = {}
        self._jitter = runtime.entropy.stream("restarts")
        self._lock = runtime.lock()
        self._groups: set[int] = set()
        self.faults_of_probes: set[tuple[str, str]] = set()
        """What the log has said of plugins' probes: whose, and what kind of fault."""

    def join(self, group: int) -> None:
        """The engine has this group, by its number."""
        with self._lock:
            self._groups.add(group)

    def label(self, group: int) -> str:
        """``group 1: ``, before what the log says of it; "" where the engine has no other."""
        with self._lock:
            return f"group {group}: " if len(self._groups) > 1 else ""

    def now(self) -> float:
        """Seconds, monotonic."""
        return self._clock.now()

    def sinks(self) -> tuple[SinkState, ...]:
        """How each sink does."""
        return tuple(
            SinkState(name=one.name, failures=one.failures, error=one.error, behind=one.behind)
            for one in self.manager.health()
        )

    def wait(self, seconds: float) -> None:
        """Let so much time pass."""
        try:
            self._runtime.wait(self._clock.event(), self._clock.now() + seconds)
        except TimeoutError:
            return

    def start(self) -> None:
        """Begin to write to the sinks."""
        self.manager.start()

    def stop(self) -> None:
        """Tell the sinks what is still to be told, for ``LAST_WORDS`` seconds at most, and let them go. Idempotent."""
        self.manager.stop(self._clock.now() + LAST_WORDS)

    def after(self, ending: Ending) -> Restart | GiveUp:
        """What follows from a worker's end that nobody asked for; it is counted."""
        with self._lock:
            return self._restarts.after(ending, self._jitter.random())

    def restarts(self, slots: Sequence[Slot], *, faulty: bool) -> list[int]:
        """Workers begin in these slots: how often each had a worker begin there after a fault, of it or its group.

        ``faulty``: they do, which counts. Those that begin on purpose do not, and a slot keeps its number over them.
        """
        with self._lock:
            for slot in slots if faulty else ():
                self._anew[slot] = self._anew.get(slot, 0) + 1
            return [self._anew.get(slot, 0) for slot in slots]

    def forgive(self, slots: tuple[str, ...]) -> None:
        """Their ends so far were no fault of theirs."""
        with self._lock:
            self._restarts.forgive(slots)
