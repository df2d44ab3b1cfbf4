"""What plugins know of a stopped worker's resources: probes that its executor gave, and those of extensions.

They are strangers' code and may wait for what a dead worker holds. So each runs in a thread, which has a moment for it,
and one that fails or is late proves nothing: that is unknown, of it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final, Protocol

from enginebay.errors import in_words, one_line, shown
from enginebay.interfaces import Finding, Reclaim
from enginebay.messages import WorkerStatus
from enginebay.runtime import Runtime

__all__ = ["Probes", "Probing"]

_PATIENCE: Final = 2.0
_MOST: Final = 512
"""Characters of a reason."""


class Probing(Protocol):
    """The hook of extensions; the plugin host's ``Hooks`` has it."""

    def probe_reclaim(self, worker: WorkerStatus) -> Mapping[str, Callable[[], object]]:
        """By the name of its plugin, what says something of a worker that was stopped."""


class Probes:
    """One group's. ``record`` and ``findings`` may come from any thread."""

    def __init__(self, runtime: Runtime, hooks: Probing) -> None:
        self._runtime, self._hooks = runtime, hooks
        self._recorded: list[tuple[_Probe, Callable[[], object]]] = []
        self._extensions: dict[str, _Probe] = {}

    def record(self, what: str, probe: Callable[[], Finding]) -> None:
        """The executor is about to take ``what`` for its workers, and ``probe`` sees whether it is free again."""
        self._recorded.append((_Probe(what), probe))

    def findings(self, worker: WorkerStatus) -> list[Finding]:
        """Of a worker that was stopped. All are asked at once."""
        probes = list(self._recorded)
        for name, ask in self._hooks.probe_reclaim(worker).items():
            probes.append((self._extensions.setdefault(name, _Probe(name)), ask))
        asked = [(one, one.begin(self._runtime, ask)) for one, ask in probes]
        deadline = self._runtime.clock.now() + _PATIENCE
        return [found for one, answer in asked for found in one.end(self._runtime, answer, deadline)]

    def forget(self) -> None:
        """Nothing is left of those that what was recorded was taken for."""
        self._recorded.clear()


class _Probe:
    """One of them. While it is late it is not asked again: nobody waits twice for what hangs, nor do threads add up."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._late: Future[list[Finding]] | None = None

    def begin(self, runtime: Runtime, ask: Callable[[], object]) -> Future[list[Finding]] | None:
        """Ask, in a thread; None: it is late."""
        if self._late is not None and not self._late.done():
            return None
        self._late, answer = None, Future[list[Finding]]()

        def run() -> None:
            try:
                answer.set_result(self._said(ask()))
            except BaseException as error:  # an interrupt is none here, in a thread of its own
                answer.set_result([self._unknown(f"its probe raised {in_words(error)}")])

        try:
            runtime.spawner.thread("enginebay-reclaim-probe", run)
        except RuntimeError as error:  # the system has no more of them
            answer.set_result([self._unknown(f"it could not be asked: {in_words(error)}")])
        return answer

    def end(self, runtime: Runtime, answer: Future[list[Finding]] | None, deadline: float) -> list[Finding]:
        """What it says by then; an ``answer`` of None is as ``begin`` has it."""
        if answer is None:
            return [self._unknown("it has not answered yet what it was asked before")]
        try:
            return runtime.wait(answer, deadline)
        except TimeoutError:
            self._late = answer
            return [self._unknown(f"it has not answered within {_PATIENCE:g} s")]

    def _said(self, said: object) -> list[Finding]:
        told = [] if said is None else list(said) if isinstance(said, (list, tuple)) else [said]
        return [self._sound(each) for each in told]

    def _sound(self, found: object) -> Finding:
        """A finding as it should be: what a stranger puts into one may be anything."""
        if not isinstance(found, Finding):
            return self._unknown(f"its probe returned a {type(found).__name__}, and must return a Finding")
        if found.verdict not in list(Reclaim):
            return self._unknown(f"its probe has the verdict {shown(found.verdict)}, which is none")
        what, reason = (one_line(str(said or ""), _MOST) for said in (found.what, found.reason))
        return Finding(what=what, verdict=Reclaim(found.verdict), reason=reason)

    def _unknown(self, why: str) -> Finding:
        return Finding(what=self._what, verdict=Reclaim.UNKNOWN, reason=why)
