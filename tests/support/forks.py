"""Forked children of the test's own process."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

__all__ = ["in_a_fork"]

FAILED = 99


def in_a_fork(child: Callable[[], int | None]) -> int:
    """The exit code of a forked child that runs ``child`` and returns what it returned (None: 0), 99 if it raised.

    Whatever happens, the child ends here: one that came back out of a test would go on as a second pytest, and speak
    for this one on the same line.
    """
    pid = os.fork()
    if not pid:
        code = FAILED
        try:
            code = child() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
