"""What the kernel tells of processes: whether it killed any for want of memory, and whether one lacks a processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["oom_kills", "scheduled"]


def oom_kills(root: Path = Path("/")) -> int:
    """How many processes it has killed so far in this process's cgroup, or on the whole machine where that is unknown.

    The number has risen when a worker was killed so; whom it killed, it does not say.
    """
    for path in _counters(root):
        try:
            pairs = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
            found = [int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == "oom_kill"]
        except (OSError, ValueError):
            continue
        if found:
            return found[0]
    return 0


def _counters(root: Path) -> Iterator[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        inside = group.strip("/")
        if not controllers:  # version 2
            yield root / "sys/fs/cgroup" / inside / "memory.events"
        elif "memory" in controllers.split(","):
            yield root / "sys/fs/cgroup/memory" / inside / "memory.oom_control"
    yield root / "sys/fs/cgroup/memory.events"  # a container sees its own group as the root, under another name
    yield root / "sys/fs/cgroup/memory/memory.oom_control"
    yield root / "proc/vmstat"


def scheduled(pid: int, thread: int | None = None) -> tuple[float, float]:
    """Seconds that a thread (unset: the process's main one) was on a processor, and that it waited for one, in all.

    Both are -1 where the kernel does not say, or the thread has ended.
    """
    try:
        with open(f"/proc/{pid}/task/{pid if thread is None else thread}/schedstat", encoding="ascii") as file:
            ran, queued, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return -1.0, -1.0
    return ran / 1e9, queued / 1e9
