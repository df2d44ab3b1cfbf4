"""What the executors' suite makes of probes: it asks each that was given, as the engine does after a stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from enginebay.errors import in_words
from enginebay.interfaces import Finding, Reclaim, RecordResource
from enginebay.runfolder import LazyRunFolder
from enginebay.runtime import Runtime

_PAUSE: Final = 0.01


class GivenProbes:
    """The probes of the workers that the next stop ends. It knows nothing of who drives the executor."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._given: list[tuple[str, str, Callable[[], Finding]]] = []

    @property
    def kinds(self) -> set[str]:
        """The kinds of what they look at."""
        return {kind for kind, _, _ in self._given}

    def recorder(self, folder: LazyRunFolder) -> RecordResource:
        """What the executor is given to record resources with; they are written down in ``folder``."""
        given = self._given

        def record(kind: str, name: str, probe: Callable[[], Finding] | None = None) -> None:
            folder.record(kind, name)
            if probe is not None:
                given.append((kind, name, probe))

        return record

    def forget(self) -> None:
        """Drop them, and what they hold."""
        self._given.clear()

    def wait_until_free(self, seconds: float) -> None:
        """Ask each until it says something else than ``Pending``, and forget it. Of the first that is wrong, or says so
        for so many seconds, an ``AssertionError`` is raised."""
        for kind, name, probe in self._given:
            until = self._runtime.clock.now() + seconds
            while (found := self._ask(f"{kind} {name}", probe, until)).verdict == Reclaim.PENDING:
                assert self._runtime.clock.now() < until, f"{kind} {name} is held after the stop: {found.reason}"
                time.sleep(_PAUSE)
        self.forget()

    def _ask(self, what: str, probe: Callable[[], Finding], deadline: float) -> Finding:
        answer = Future[Finding]()

        def run() -> None:
            try:
                answer.set_result(probe())
            except BaseException as error:  # of a stranger: it is told by the thread that waits
                answer.set_exception(AssertionError(f"the probe of {what} raised {in_words(error)}"))

        self._runtime.spawner.thread("enginebay-kit-probe", run)
        try:
            found = self._runtime.wait(answer, deadline)
        except TimeoutError:
            raise AssertionError(f"the probe of {what} does not return") from None
        assert isinstance(found, Finding), f"the probe of {what} returned a {type(found).__name__}, and no Finding"
        assert found.verdict in list(Reclaim), f"the probe of {what} has the verdict {found.verdict!r}, which is none"
        return found
