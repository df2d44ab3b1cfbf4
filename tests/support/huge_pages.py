"""What the kernel knows of some memory of this process."""

from __future__ import annotations

from pathlib import Path

__all__ = ["is_advised", "kernel_has_huge_pages"]


def kernel_has_huge_pages() -> bool:
    """Whether it can be advised at all."""
    return Path("/sys/kernel/mm/transparent_hugepage").is_dir()


def is_advised(address: int) -> bool:
    """Whether huge pages were asked for where that address lies."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            begin, _, end = name.partition("-")
            inside = int(begin, 16) <= address < int(end, 16)
        elif inside and name == "VmFlags:":
            return "hg" in rest.split()
    raise ValueError(f"nothing is mapped at {address:#x}")
