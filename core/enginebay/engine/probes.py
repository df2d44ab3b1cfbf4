"""What plugins know of a stopped worker's resources: probes that its executor gave, and those of extensions.

They are strangers' code and may wait for what a dead worker holds. So they run in a thread, which has a moment for it,
and one that fails or is late proves nothing: that is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from enginebay.errors import in_words, is_interrupt
from enginebay.interfaces import Finding, Reclaim
from enginebay.messages import WorkerStatus
from enginebay.runtime import Runtime

__all__ = ["Probes", "Probing"]

_PATIENCE: Final = 2.0


class Probing(Protocol):
    """The hook of extensions; the plugin host's ``Hooks`` has it."""

    def listeners(self, hook: str) -> Sequence[str]:
        """The names of those that implement it."""

    def probe_reclaim(self, worker: WorkerStatus) -> list[Finding]:
        """What they say of a worker that was stopped."""


class Probes:
    """One group's. ``record`` may come from any thread, all else is the thread's that drives the group."""

    def __init__(self, runtime: Runtime, hooks: Probing) -> None:
        self._runtime, self._hooks = runtime, hooks
        self._recorded: list[tuple[str, Callable[[], Finding]]] = []

    def record(self, what: str, probe: Callable[[], Finding]) -> None:
        """The executor is about to take ``what`` for its workers, and ``probe`` sees whether it is free again."""
        self._recorded.append((what, probe))

    def findings(self, worker: WorkerStatus) -> list[Finding]:
        """Of a worker that was stopped."""
        recorded = list(self._recorded)
        if not recorded and not self._hooks.listeners("enginebay_probe_reclaim"):
            return []
        answer: Future[list[Finding]] = Future()

        def ask() -> None:
            try:
                found = [_asked(what, probe) for what, probe in recorded]
                answer.set_result([*found, *self._hooks.probe_reclaim(worker)])
            except BaseException as error:
                answer.set_exception(error)

        self._runtime.spawner.thread("enginebay-reclaim-probes", ask)
        try:
            return self._runtime.wait(answer, self._runtime.clock.now() + _PATIENCE)
        except TimeoutError:
            why = f"they have not answered within {_PATIENCE:g} s"
        except BaseException as error:
            if is_interrupt(error):
                raise
            why = in_words(error)
        return [Finding(what="probes of plugins", verdict=Reclaim.UNKNOWN, reason=why)]

    def forget(self) -> None:
        """Nothing is left of those that what was recorded was taken for."""
        self._recorded.clear()


def _asked(what: str, probe: Callable[[], Finding]) -> Finding:
    try:
        found: object = probe()
    except BaseException as error:
        if is_interrupt(error):
            raise
        return Finding(what=what, verdict=Reclaim.UNKNOWN, reason=f"its probe raised {in_words(error)}")
    if isinstance(found, Finding):
        return found
    return Finding(what=what, verdict=Reclaim.UNKNOWN, reason=f"its probe returned a {type(found).__name__}")
