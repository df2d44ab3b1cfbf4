"""When the native kernels are there: found, built while the engine runs, waited for, or not wanted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from enginebay_runner_v2.native import load, why_not
from enginebay_runner_v2.native.build import BuildFailed, build, find

__all__ = ["Kernels"]

_LOG = logging.getLogger("enginebay.runner.v2")
_BUILD_SECONDS = 600
"""What the deadlines are told that a build may take."""


class Kernels:
    """``compile`` is the option of that name; ``announce`` is the runner context's."""

    def __init__(self, compile: str, announce: Callable[[int], None]) -> None:  # noqa: A002  # the option's name
        self._compile, self._announce = compile, announce
        self._built = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Find what was built before, or begin to build it. Returns at once."""
        if self._compile == "off" or self._thread is not None or self._built.is_set():
            return
        if find() is not None:
            self._built.set()
            return
        if (why := why_not()) is not None:
            _LOG.warning("%s", why)
            return
        self._thread = threading.Thread(target=self._build, name="enginebay-kernels", daemon=True)
        self._thread.start()

    def _build(self) -> None:
        try:
            build()
        except BuildFailed as error:
            _LOG.warning("the kernels could not be built, so steps run on torch's own operators: %s", error)
        else:
            self._built.set()

    def wait(self) -> None:
        """Where the option says so, wait for the build's end, however it ends."""
        if self._compile == "wait" and self._thread is not None:
            self._announce(_BUILD_SECONDS)
            self._thread.join(_BUILD_SECONDS)

    def ready(self) -> bool:
        """Whether the kernels are in this process now; loads them the first time that they can be."""
        if not self._built.is_set():
            return False
        try:
            load()
        except BuildFailed as error:
            self._built.clear()
            self._compile = "off"
            _LOG.warning("the kernels cannot be used, so steps run on torch's own operators: %s", error)
            return False
        return True

    def leave(self) -> None:
        """Wait for no build any more; one that is under way ends by itself, and the next start finds it."""
        self._thread = None
