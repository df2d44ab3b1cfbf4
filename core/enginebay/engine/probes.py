"""What plugins know of a stopped worker's resources: probes that its executor gave, and those of extensions.

They are strangers' code and may wait for what a dead worker holds. So each runs in a thread, which has a moment for it,
and one that fails or is late proves nothing: that is unknown, of it alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final, NamedTuple, Protocol

from enginebay.errors import in_words, one_line, shown
from enginebay.interfaces import Finding, Reclaim
from enginebay.messages import WorkerStatus
from enginebay.runtime import Runtime

__all__ = ["Probes", "Probing"]

_LOG = logging.getLogger(__name__)

_PATIENCE: Final = 2.0
_LATE: Final = "late"
_MOST: Final = 512
"""Characters of a reason."""


class Probing(Protocol):
    """The hook of extensions; the plugin host's ``Hooks`` has it."""

    def probe_reclaim(self, worker: WorkerStatus) -> Mapping[str, Callable[[], object]]:
        """By the name of its plugin, what says something of a worker that was stopped."""


class Probes:
    """One group's. ``record`` and ``findings`` may come from any thread."""

    def __init__(self, runtime: Runtime, hooks: Probing, told: set[tuple[str, str]] | None = None) -> None:
        """``told``: whose faults the log has said already, and which; that is added to."""
        self._runtime, self._hooks = runtime, hooks
        self._told = set[tuple[str, str]]() if told is None else told
        self._recorded: list[tuple[_Probe, Callable[[], object]]] = []
        self._extensions: dict[str, _Probe] = {}

    def record(self, what: str, probe: Callable[[], Finding]) -> None:
        """The executor is about to take ``what`` for its workers, and ``probe`` sees whether it is free again."""
        self._recorded.append((_Probe(what, "the executor"), probe))

    def findings(self, worker: WorkerStatus) -> list[Finding]:
        """Of a worker that was stopped. All are asked at once. What is wrong with one is a line of the log, once."""
        probes = list(self._recorded)
        for name, ask in self._hooks.probe_reclaim(worker).items():
            probes.append((self._extensions.setdefault(name, _Probe(name, name)), ask))
        asked = [(one, one.begin(self._runtime, ask)) for one, ask in probes]
        deadline = self._runtime.clock.now() + _PATIENCE
        found: list[Finding] = []
        for one, answer in asked:
            for said in one.end(self._runtime, answer, deadline):
                if said.fault and (one.whose, said.fault) not in self._told:
                    self._told.add((one.whose, said.fault))
                    _LOG.warning("%s, asked what a stopped worker holds: %s", one.name, said.finding.reason)
                found.append(said.finding)
        return found

    def forget(self) -> None:
        """Nothing is left of those that what was recorded was taken for."""
        self._recorded.clear()


class _Said(NamedTuple):
    """What a probe says; ``fault``: what kind of it, where it has failed to say anything."""

    finding: Finding
    fault: str = ""


class _Probe:
    """One of them. While it is late it is not asked again: nobody waits twice for what hangs, nor do threads add up."""

    def __init__(self, what: str, whose: str) -> None:
        self.whose = whose
        self._what = what
        self._late: Future[list[_Said]] | None = None

    @property
    def name(self) -> str:
        """Whose it is, and which of them."""
        return self.whose if self.whose == self._what else f"{self.whose} ({self._what})"

    def begin(self, runtime: Runtime, ask: Callable[[], object]) -> Future[list[_Said]] | None:
        """Ask, in a thread; None: it is late."""
        if self._late is not None and not self._late.done():
            return None
        self._late, answer = None, Future[list[_Said]]()

        def run() -> None:
            try:
                answer.set_result(self._heard(ask()))
            except BaseException as error:  # an interrupt is none here, in a thread of its own
                answer.set_result([self._unknown(f"its probe raised {in_words(error)}", type(error).__name__)])

        try:
            runtime.spawner.thread("enginebay-reclaim-probe", run)
        except RuntimeError as error:  # the system has no more of them
            answer.set_result([self._unknown(f"it could not be asked: {in_words(error)}", "not asked")])
        return answer

    def end(self, runtime: Runtime, answer: Future[list[_Said]] | None, deadline: float) -> list[_Said]:
        """What it says by then; an ``answer`` of None is as ``begin`` has it."""
        if answer is None:
            return [self._unknown("it has not answered yet what it was asked before", _LATE)]
        try:
            return runtime.wait(answer, deadline)
        except TimeoutError:
            self._late = answer
            return [self._unknown(f"it has not answered within {_PATIENCE:g} s", _LATE)]

    def _heard(self, said: object) -> list[_Said]:
        told = [] if said is None else list(said) if isinstance(said, (list, tuple)) else [said]
        return [self._sound(each) for each in told]

    def _sound(self, found: object) -> _Said:
        """A finding as it should be: what a stranger puts into one may be anything."""
        if not isinstance(found, Finding):
            why = f"its probe returned a {type(found).__name__}, and must return a Finding"
            return self._unknown(why, "no finding")
        if found.verdict not in list(Reclaim):
            return self._unknown(f"its probe has the verdict {shown(found.verdict)}, which is none", "no verdict")
        what, reason = (one_line(str(said or ""), _MOST) for said in (found.what, found.reason))
        return _Said(Finding(what=what, verdict=Reclaim(found.verdict), reason=reason))

    def _unknown(self, why: str, fault: str) -> _Said:
        return _Said(Finding(what=self._what, verdict=Reclaim.UNKNOWN, reason=why), fault)
