"""Huge pages are asked for where whole pages fit, and a kernel that has none is no error."""

from __future__ import annotations

import ctypes
import mmap

import pytest

from enginebay.worker.huge_pages import advise_huge_pages
from support.huge_pages import is_advised, kernel_has_huge_pages

SIZE = 8 << 20


def test_the_advice_is_given_for_whole_pages_alone() -> None:
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        view = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(view)
        assert not is_advised(address)
        page = mmap.PAGESIZE
        assert advise_huge_pages(address + 1, SIZE - 2) is kernel_has_huge_pages()
        inside = [is_advised(address + offset) for offset in (page, SIZE // 2, SIZE - page - 1)]
        assert inside == [kernel_has_huge_pages()] * 3
        assert not is_advised(address)  # the pages at the edges are not ours alone
        assert not is_advised(address + SIZE - 1)
        del view


@pytest.mark.parametrize("size", [0, 1, mmap.PAGESIZE - 1])
def test_less_than_a_page_is_left_alone(size: int) -> None:
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        view = ctypes.c_char.from_buffer(memory)
        assert not advise_huge_pages(ctypes.addressof(view), size)
        assert not is_advised(ctypes.addressof(view))
        del view


def test_a_kernel_that_refuses_is_no_error() -> None:
    assert not advise_huge_pages(1 << 62, SIZE)  # nothing can be mapped there


def test_other_systems_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginebay.worker.huge_pages.sys.platform", "darwin")
    assert not advise_huge_pages(0, SIZE)
