"""What a child process takes upon itself before it touches a stranger's data; called in the child."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """End when the process ``parent`` does, and at once when it is gone already. Linux alone; elsewhere: no effect.

    Decision: the kernel's signal comes when the *thread* that started us ends, so it only makes us look who our parent
    is. A violating change asks for SIGKILL, and dies with a thread of a pool.
    """
    if sys.platform != "linux":
        return

    def look(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(1)

    signal.signal(signal.SIGUSR1, look)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
    look()


def limit_memory(most: int) -> None:
    """Bytes of address space that this process may have from now on, all told; never more than it may have already."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def limit_growth(more: int) -> None:
    """The same, counted from what this process has now."""
    if sys.platform != "linux":  # an address space is hardly ever limited elsewhere
        return
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit_memory(pages * resource.getpagesize() + more)


def limit_files(words: int) -> None:
    """Nothing is opened any more, no core is dumped, and at most ``words`` bytes are written to a file."""
    for kind, most in ((resource.RLIMIT_NOFILE, 3), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, words)):
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
