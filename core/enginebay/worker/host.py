"""The host as a device: CPU memory as the kernel and the cgroup limit it, and the cores that we may use. No torch."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from enginebay.interfaces import Device
from enginebay.messages import DeviceMemory

_UNLIMITED = 1 << 60
"""cgroup v1 writes a number near 2**63 for "no limit"."""

_WORTH_A_LOOK = 64 << 20
"""Bytes that must have come before freed memory is looked for, which takes up to 40 ms where there is none."""


class HostMemory:
    """Reads ``/proc`` and ``/sys/fs/cgroup`` (v1 or v2) below ``root``, so that a test can write its own."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._peak_floor = 0
        self._peak_ceiling = 0
        self._lowest: int | None = None

    def read(self) -> DeviceMemory:
        """Bytes now. ``total`` is the smallest limit that applies, ``process`` this process's resident memory."""
        total, free = self._host()
        for limit, used in self._limits():
            total, free = min(total, limit), min(free, max(0, limit - used))
        resident, highest = self._process()
        # The kernel's high-water mark cannot be reset without spoiling it for others in this process: it counts
        # only when it has moved since ``reset_peak``.
        peak = highest if highest > self._peak_ceiling else max(resident, self._peak_floor)
        return DeviceMemory(total=total, free=free, peak=peak, process=resident)

    def reset_peak(self) -> None:
        """From now on ``peak`` is about what comes after."""
        self._peak_floor, self._peak_ceiling = self._process()

    def give_back(self) -> None:
        """Give the kernel what was freed: of the weights that a worker drops the C library keeps nearly all.

        Not when this is called for the first time, nor where little more is resident than at an earlier call.
        """
        resident, _ = self._process()
        if self._lowest is not None and resident - self._lowest >= _WORTH_A_LOOK:
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
            if trim is not None:
                trim(0)
            resident, _ = self._process()
        self._lowest = resident if self._lowest is None else min(self._lowest, resident)

    def _host(self) -> tuple[int, int]:
        try:
            text = (self._root / "proc/meminfo").read_text(encoding="utf-8")
        except OSError:  # not Linux
            page = os.sysconf("SC_PAGE_SIZE")
            total = os.sysconf("SC_PHYS_PAGES") * page
            return total, os.sysconf("SC_AVPHYS_PAGES") * page if "SC_AVPHYS_PAGES" in os.sysconf_names else total
        fields = _kilobytes(text)
        return fields["MemTotal"], fields.get("MemAvailable", fields.get("MemFree", 0))

    def _process(self) -> tuple[int, int]:
        try:
            status = (self._root / "proc/self/status").read_text(encoding="utf-8", errors="replace")  # names are bytes
        except OSError:  # not Linux: nothing is known of the process
            return 0, 0
        fields = _kilobytes(status)
        return fields.get("VmRSS", 0), fields.get("VmHWM", 0)

    def _limits(self) -> Iterator[tuple[int, int]]:
        """(limit, bytes used that cannot be reclaimed) of every cgroup above this process that has a limit."""
        try:
            lines = (self._root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if not controllers:
                base, names = self._root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                base = self._root / "sys/fs/cgroup/memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            else:
                continue
            yield from _walk(base, path, names)


def _walk(base: Path, path: str, names: tuple[str, str, str]) -> Iterator[tuple[int, int]]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        folder = base.joinpath(
            *parts[:depth]
        )  # the path may lie outside our view of the tree: then only the root is read
        limit, used = _number(folder / names[0]), _number(folder / names[1])
        if limit is None or used is None or limit >= _UNLIMITED:
            continue
        yield limit, max(0, used - _stat(folder / "memory.stat", names[2]))


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max" is no limit


def _stat(path: Path, key: str) -> int:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    for line in lines:
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdigit():
            return int(value)
    return 0


def _kilobytes(text: str) -> dict[str, int]:
    """``Name:   123 kB`` lines as bytes."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def available_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: its affinity, and the cgroup v2 quota rounded up; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
    except (OSError, ValueError):  # no cgroup v2 here, or not at its root
        return max(1, cores)
    if quota.isdigit() and period.isdigit() and int(period):
        cores = min(cores, -(-int(quota) // int(period)))
    return max(1, cores)


class HostDevice(Device):
    """The CPU without torch: for runners on numpy, and for fakes. One device, index 0."""

    kind = "cpu"

    def __init__(self, memory: HostMemory | None = None) -> None:
        self._memory = memory or HostMemory()

    def count(self) -> int:
        return 1

    def unavailable_reason(self) -> str | None:
        return None

    def set_current(self, index: int) -> None:
        if index != 0:
            raise ValueError(f"there is one cpu device, index 0, not {index}")

    def memory(self) -> DeviceMemory:
        return self._memory.read()

    def empty_cache(self) -> None:
        self._memory.give_back()

    def reset_peak(self) -> None:
        self._memory.reset_peak()

    def synchronize(self) -> None:
        """The CPU has always done what was asked of it."""

    def seed(self, seed: int) -> None:
        """There is no framework generator to seed."""

    def touch_math_library(self) -> None:
        """There are no handles."""

    def supports_dtype(self, dtype: str) -> bool:
        return dtype in ("float32", "float16", "bfloat16")

    def collective_backend(self) -> str:
        return ""

    def visible_env(self) -> str:
        return ""
