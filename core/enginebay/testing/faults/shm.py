"""Room in /dev/shm, taken by a file without a name: it is gone with its process, however that ends."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["fill_shm"]


def fill_shm(limit: int, folder: str = "/dev/shm") -> tuple[int, Callable[[], None]]:  # noqa: S108  # no name is made there
    """Take ``limit`` bytes, or all that are free; how many it took, and what gives them back."""
    descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        room = os.fstatvfs(descriptor)
        taken = min(limit, room.f_bavail * room.f_frsize)
        if taken:
            os.posix_fallocate(descriptor, 0, taken)
    except BaseException:
        os.close(descriptor)
        raise
    return taken, lambda: os.close(descriptor)
