"""When the native kernels are there: found, built by a child while the engine runs, waited for, or not wanted."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

from enginebay.errors import one_line
from enginebay_runner_v2.native import load, why_not
from enginebay_runner_v2.native.build import BuildFailed, find, folder, parts

__all__ = ["Kernels", "foreseen"]

_LOG = logging.getLogger("enginebay.runner.v2")
_BUILD_SECONDS = 900
"""What the deadlines are told that a build may take."""


def foreseen(compile: str) -> tuple[str, str]:  # noqa: A002  # the option's name
    """Whether steps will run natively, and why, before anything is started: for ``enginebay check``."""
    if compile == "off":
        return "off", "[runner.options] compile"
    if (library := find()) is not None:
        return "built", str(library)
    if (why := why_not()) is not None:
        return "none", why
    done, files = parts()
    when = "the start waits for them" if compile == "wait" else "built while the engine runs, which then changes over"
    return "not built yet", f"{when}; {done} of {files} files are compiled, in {folder()}"


class Kernels:
    """``compile`` is the option of that name; ``announce`` is the runner context's."""

    def __init__(self, compile: str, announce: Callable[[int], None]) -> None:  # noqa: A002  # the option's name
        self._wanted, self._waits = compile != "off", compile == "wait"
        self._announce = announce
        self._built = False
        self._builder: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Find what was built before, or begin to build it. Returns at once."""
        if not self._wanted or self._built or self._builder is not None:
            return
        if find() is not None:
            self._built = True
        elif (why := why_not()) is not None:
            self._do_without(why)
        else:
            how = "now" if self._waits else "gently"
            self._builder = subprocess.Popen(
                [sys.executable, "-P", "-m", "enginebay_runner_v2.native.child", how],
                stdin=subprocess.PIPE,  # open as long as we are there
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )

    def wait(self) -> None:
        """Where the option says so, wait for the build's end, however it ends."""
        if self._waits and self._builder is not None:
            self._announce(_BUILD_SECONDS)
            with suppress(subprocess.TimeoutExpired):
                self._builder.wait(_BUILD_SECONDS)

    def ready(self) -> bool:
        """Whether the kernels are in this process now; loads them the first time that they can be."""
        if self._builder is not None and self._builder.poll() is not None:
            self._take(self._builder)
        if not self._built:
            return False
        try:
            load()
        except BuildFailed as error:
            self._built = False
            self._do_without(f"the kernels cannot be used, so steps run on torch's own operators: {error}")
        return self._built

    def _take(self, builder: subprocess.Popen[str]) -> None:
        """It has ended. One that was killed has left its compilers, and they hold its output open."""
        if builder.returncode < 0:
            _end_group(builder)
        said, _ = builder.communicate()
        self._builder, self._built = None, builder.returncode == 0
        if not self._built:
            why = one_line(said.strip() or f"the builder ended with {builder.returncode}", 400)
            self._do_without(f"the kernels could not be built, so steps run on torch's own operators: {why}")

    def _do_without(self, why: str) -> None:
        self._wanted = False
        _LOG.warning("%s", why)

    def leave(self) -> None:
        """End a build that is under way, with the compilers that it has started."""
        builder, self._builder = self._builder, None
        if builder is not None:
            _end_group(builder)
            builder.communicate()


def _end_group(builder: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(builder.pid, signal.SIGKILL)
