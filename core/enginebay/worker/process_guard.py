"""What a worker's process takes upon itself: it ends with its parent, hands nothing on, and says where it stands."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import sys
import threading
from collections.abc import Iterable

__all__ = ["ask_to_die_with_parent", "bind", "check_parent", "end_with", "keep_to_itself", "show_stacks_on_signal"]

_PR_SET_PDEATHSIG = 1


def ask_to_die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent ends: it comes also when we are stopped. Linux alone.

    The first thing that is done; ``check_parent`` follows when it is known who the parent is. ``enginebay.runtime`` has
    the decision on what starts us.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def check_parent(parent: int) -> None:
    """End at once when the process that started us has gone already."""
    if os.getppid() != parent:
        os._exit(1)


def keep_to_itself(descriptors: Iterable[int]) -> None:
    """Our own children inherit none of these: a grandchild that held a pipe would keep its end from being seen."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # the one of the start message is closed by now
            os.set_inheritable(descriptor, False)


def show_stacks_on_signal() -> None:
    """SIGUSR1 writes the Python stacks of all threads to stderr, also while native code runs; so does a crash."""
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def bind(cpus: Iterable[int]) -> None:
    """Run on these CPUs alone, and what we start with us."""
    wanted = set(cpus)
    if wanted:
        os.sched_setaffinity(0, wanted)


def end_with(death: int) -> None:
    """Watch the pipe that the parent holds open: at its end this process ends, with all of its group.

    Beside the kernel's signal, which not every system has, and which the parent's *thread* is the subject of.
    """
    threading.Thread(name="enginebay-death-pipe", target=_watch, args=(death,), daemon=True).start()


def _watch(death: int) -> None:
    poll = select.poll()
    poll.register(death, select.POLLIN)
    while not poll.poll():
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
