"""Whether the process that wrote something still lives: by boot, pid namespace, pid and start, or it is not judged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["Owner", "is_gone", "process_of", "this_process"]


class Owner(NamedTuple):
    """A process for good: its pid in that namespace of that boot, and the clock ticks after boot at which it began."""

    boot: str
    namespace: str
    pid: int
    start_ticks: int


def this_process() -> Owner:
    """Ours."""
    return process_of(os.getpid())


def process_of(pid: int) -> Owner:
    """One that lives in our pid namespace."""
    return Owner(_boot(), _namespace(), pid, _start_ticks(pid) or 0)


def is_gone(owner: Owner) -> bool:
    """Whether it is known that this process has ended; one of another pid namespace is not judged."""
    if not owner.boot or owner.boot != _boot():
        return bool(owner.boot and _boot())
    if owner.namespace != _namespace() or not owner.start_ticks:
        return False
    return _start_ticks(owner.pid) != owner.start_ticks


def _boot() -> str:
    return _text("/proc/sys/kernel/random/boot_id")


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_ticks(pid: int) -> int | None:
    """None: there is no such process. A zombie has ended, too."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    return int(fields[19])


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()  # a name may end in half a character
    except OSError:
        return ""
