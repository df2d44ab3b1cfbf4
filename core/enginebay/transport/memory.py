"""Shared memory without a name: a sealed memfd, allocated before it is used and gone with its last process.

Each memory has one writer. The engine maps its own for writing and then seals it against every other writable mapping;
a worker's memory is written by that worker and mapped read-only by the engine. Neither can be shrunk, so no access can
end in SIGBUS, whatever the other side does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import platform
from pathlib import Path
from typing import Final

from enginebay.errors import CapabilityError, OutOfMemory

__all__ = ["SharedMemory", "available_bytes", "check_machine"]

ORDERED_MACHINES: Final = ("x86_64", "AMD64")
"""Where stores become visible in program order, and loads are done in it: what the rings rely on."""

_SEAL_FUTURE_WRITE: Final = 0x10  # F_SEAL_FUTURE_WRITE of linux/fcntl.h; the fcntl module names it from 3.13 on
_SIZE_SEALS: Final = 0x2 | 0x4  # F_SEAL_SHRINK | F_SEAL_GROW
_SEAL_SEAL: Final = 0x1
_ADD_SEALS: Final = 1033  # F_ADD_SEALS


class SharedMemory:
    """One mapping of a memfd. ``bytes`` is the mapping itself, ``words`` the same memory as native 64-bit words.

    An item of ``words`` is read and written by one aligned 8-byte move, which is whole on the machines that
    ``check_machine`` lets through; ``struct`` with a byte order would go byte by byte.
    """

    def __init__(self, fd: int, size: int, *, writable: bool) -> None:
        self.fd = fd
        self.size = size
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.bytes = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=protection)
        # not MADV_DONTFORK: a forked child holds the descriptors anyhow, and would die at the first look
        self._view = memoryview(self.bytes)
        self.words = self._view.cast("Q")

    @classmethod
    def create(cls, what: str, size: int, *, for_us: bool) -> SharedMemory:
        """``size`` bytes (whole pages) of zeros. ``for_us``: written by this process alone, else by who is given it.

        Raises ``OutOfMemory`` naming ``what``, how much it needs and how much there is.
        """
        have = available_bytes()
        if size > have:
            raise OutOfMemory(_shortage(what, size, have))
        fd = os.memfd_create(f"enginebay-{what}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)  # first, so that what does not fit the limit of a file's size is refused at once
            os.posix_fallocate(fd, 0, size)
            fcntl.fcntl(fd, _ADD_SEALS, _SIZE_SEALS)
            memory = cls(fd, size, writable=for_us)
            fcntl.fcntl(fd, _ADD_SEALS, _SEAL_SEAL | (_SEAL_FUTURE_WRITE if for_us else 0))
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT):
                raise OutOfMemory(_shortage(what, size, have, error)) from error
            if error.errno == errno.EINVAL:
                raise CapabilityError(
                    f"the kernel ({platform.release()}) cannot seal shared memory; Linux 5.1 or newer can, "
                    f"and an executor that talks through sockets needs none"
                ) from error
            raise
        return memory

    @classmethod
    def attach(cls, fd: int, size: int, *, writable: bool) -> SharedMemory:
        """Map what another process made. Raises ``OSError`` when the descriptor is not that, ``ValueError`` by size."""
        there = os.fstat(fd).st_size
        if there != size:
            raise ValueError(f"descriptor {fd} is a memory of {there} bytes, not of {size}")
        return cls(fd, size, writable=writable)

    def close(self) -> None:
        """Unmap, and give the descriptor back. Idempotent."""
        if self.fd < 0:
            return
        self.words.release()
        self._view.release()
        self.bytes.close()
        os.close(self.fd)
        self.fd = -1


def check_machine(machine: str | None = None) -> None:
    """Raise ``CapabilityError`` where the rings' order of stores and loads is not what the processor keeps."""
    machine = machine or platform.machine()
    if machine not in ORDERED_MACHINES:
        raise CapabilityError(
            f"shared-memory rings need the store order of {ORDERED_MACHINES[0]}, and this machine is {machine}; "
            f"choose an executor that talks through sockets"
        )
    if not hasattr(os, "memfd_create") or not hasattr(os, "eventfd"):
        raise CapabilityError(
            f"shared-memory rings need Linux's memfd and eventfd, which Python on {platform.system()} does not offer; "
            f"choose an executor that talks through sockets"
        )


def available_bytes() -> int:
    """What can be taken without swapping: the host's, or what is left of the memory limit of this process's group."""
    left = [_meminfo_available()]
    group = _own_group()
    while group is not None:
        with contextlib.suppress(OSError, ValueError):  # no such controller, or "max": no limit here
            limit = int((group / "memory.max").read_text(encoding="utf-8"))
            left.append(limit - int((group / "memory.current").read_text(encoding="utf-8")) + _cached(group))
        group = group.parent if group != _GROUPS else None
    return max(0, min(left))


def _cached(group: Path) -> int:
    """What the kernel would give up for us: pages of files count as used."""
    words = (line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines())
    return sum(int(size) for name, size in words if name in ("active_file", "inactive_file"))


_GROUPS: Final = Path("/sys/fs/cgroup")


def _own_group() -> Path | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            if line.startswith("0::/"):
                return _GROUPS / line[3:].strip("/")
    return None


def _meminfo_available() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("Linux says MemAvailable since 3.14")


def _shortage(what: str, size: int, have: int, error: OSError | None = None) -> str:
    why = f" ({error.strerror})" if error is not None else ""
    return (
        f"shared memory for {what} needs {size:,} bytes, and {have:,} can be had{why}: ask for fewer or smaller slots, "
        f"or raise the memory limit (cgroup memory.max, `ulimit -f`)"
    )
