"""Memory in huge pages: the kernel frees gigabytes of small ones before it tells that a killed process has ended."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import sys
from typing import Final

__all__ = ["advise_huge_pages"]

_LOG: Final = logging.getLogger(__name__)


def advise_huge_pages(address: int, size: int) -> bool:
    """Ask the kernel to back ``size`` bytes from ``address`` on with huge pages, where whole ones fit.

    To be called before they are first written. Whether the kernel took the advice; one that has no huge pages does not,
    and the memory is what it was. It decides by itself what it does of it: ``/sys/kernel/mm/transparent_hugepage``.
    """
    if not sys.platform.startswith("linux"):
        return False
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE  # the kernel takes whole pages
    length = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if length <= 0:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE):
        _LOG.debug("no huge pages: %s", os.strerror(ctypes.get_errno()))
        return False
    return True
