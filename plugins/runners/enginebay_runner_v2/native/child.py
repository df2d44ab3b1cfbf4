"""Builds the library in a process of its own: ``python -P -m enginebay_runner_v2.native.child PARENT HOW``.

HOW is "gently" (one core, and only when nobody else wants it) or "now". Exit code 0, or 1 with the reason on stdout. It
ends with its parent.
"""

from __future__ import annotations

import os
import sys

from enginebay.worker.process_guard import ask_to_die_with_parent, check_parent
from enginebay_runner_v2.native.build import BuildFailed, build

__all__ = ["main"]

_NICE = 19


def main(parent: str, how: str) -> int:
    """The process's whole life; returns its exit code."""
    ask_to_die_with_parent()
    check_parent(int(parent))
    if how == "gently":
        os.nice(_NICE)
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    try:
        build()
    except BuildFailed as error:
        print(error)  # noqa: T201  # to whoever started it
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
