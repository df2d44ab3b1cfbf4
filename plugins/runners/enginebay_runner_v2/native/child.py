"""Builds the library in a process of its own: ``python -P -m enginebay_runner_v2.native.child HOW``.

HOW is "gently" (one core, and only when nobody else wants it) or "now". Exit code 0, or 1 with the reason on stdout. It
leads a group, and ends with all of it, compilers too, when whoever started it has closed its stdin, or is gone. (The
kernel's own signal would end this process alone, and when the *thread* ends that started it.)
"""

from __future__ import annotations

import os
import sys

from enginebay.worker.process_guard import end_with
from enginebay_runner_v2.native.build import BuildFailed, build

__all__ = ["main"]

_NICE = 19


def main(how: str) -> int:
    """The process's whole life; returns its exit code."""
    end_with(sys.stdin.fileno())
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
