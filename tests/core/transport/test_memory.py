"""Shared memory: what cannot be had is said in numbers, and nothing ends in a signal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from enginebay.errors import OutOfMemory
from enginebay.transport import memory
from enginebay.transport.memory import SharedMemory, available_bytes
from enginebay.transport.shared import EngineEnd


def _descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_more_than_there_is_is_refused_in_numbers() -> None:  # X10
    before = _descriptors()
    with pytest.raises(OutOfMemory) as caught:
        EngineEnd.create([0, 1], slots=1 << 24, slot_bytes=1 << 20)
    assert re.fullmatch(
        r"shared memory for the broadcast ring needs 17,592,186,048,512 bytes, and [\d,]+ can be had: ask for fewer or "
        r"smaller slots, or raise the memory limit \(cgroup memory.max, `ulimit -f`\)",
        str(caught.value),
    )
    assert _descriptors() == before


def test_what_the_kernel_refuses_is_said_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:  # X10
    code = """\
import resource
from enginebay.errors import OutOfMemory
from enginebay.transport.shared import EngineEnd
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    EngineEnd.create([0], slots=64, slot_bytes=64)  # fits
    EngineEnd.create([0])
except OutOfMemory as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"shared memory for the broadcast ring needs 1,052,672 bytes, and [\d,]+ can be had \(File too large\): ask "
        r"for fewer or smaller slots, or raise the memory limit \(cgroup memory.max, `ulimit -f`\)\n",
        done.stdout,
    )


def test_the_second_ring_that_cannot_be_had_gives_back_the_first(monkeypatch: pytest.MonkeyPatch) -> None:  # X10
    before, left = _descriptors(), iter([1 << 30, 1 << 30, 5])
    monkeypatch.setattr(memory, "available_bytes", lambda: next(left))
    with pytest.raises(OutOfMemory, match="for rank 7's replies needs 1,052,672 bytes, and 5 can be had"):
        EngineEnd.create([3, 7])
    assert _descriptors() == before


def test_no_descriptor_left_is_said_too() -> None:
    code = """\
import resource
from enginebay.errors import OutOfMemory
from enginebay.transport.shared import EngineEnd
resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, FEW))
try:
    EngineEnd.create(range(20))
except OutOfMemory as error:
    print(error)
"""
    for few in range(8, 14):
        done = subprocess.run(
            [sys.executable, "-P", "-c", code.replace("FEW", str(few))],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == (
            "shared rings for 20 ranks need 63 descriptors and more to map them, and no more can be had: "
            "raise `ulimit -n`\n"
        )


def test_the_memory_is_there_before_it_is_used() -> None:
    made = SharedMemory.create("a test", 1 << 20, for_us=True)
    assert os.fstat(made.fd).st_blocks * 512 == 1 << 20
    again = SharedMemory.attach(os.dup(made.fd), 1 << 20, writable=False)
    made.words[5] = 1 << 63
    assert again.words[5] == 1 << 63
    for change in (lambda: os.ftruncate(made.fd, 0), lambda: os.ftruncate(made.fd, 1 << 21)):
        with pytest.raises(PermissionError):
            change()
    with pytest.raises(TypeError):
        again.words[5] = 0
    again.close()
    made.close()
    made.close()


def test_another_size_is_not_mapped() -> None:
    made = SharedMemory.create("a test", 4096, for_us=False)
    with pytest.raises(ValueError, match=f"^descriptor {made.fd} is a memory of 4096 bytes, not of 8192$"):
        SharedMemory.attach(made.fd, 8192, writable=False)
    made.close()


def _group(folder: Path, limit: str, current: int, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 7\nactive_file {cached}\ninactive_file {cached}\nfile 99\n")


def test_the_groups_limit_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "inner"
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_own_group", lambda: inner)
    assert available_bytes() > 1 << 20  # no such folder
    _group(inner, "max", 5)
    assert available_bytes() > 1 << 20
    _group(outer, "1000", 400)
    assert available_bytes() == 600
    _group(outer, "1000", 990, cached=100)  # files that were read count as used, and make room
    assert available_bytes() == 210
    _group(inner, "1", 5)
    assert available_bytes() == 0
