"""The host's memory and cores, read from files that the test wrote, and once from the real ones."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from enginebay.worker import HostDevice, HostMemory
from enginebay.worker.host import available_cores

KIB, MIB = 1 << 10, 1 << 20


def write(root: Path, files: dict[str, str]) -> HostMemory:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return HostMemory(root)


HOST = {
    "proc/meminfo": "MemTotal:  8192 kB\nMemFree: 1024 kB\nMemAvailable: 4096 kB\nHugePages_Total: 0\n",
    "proc/self/status": "Name:\tpython\nVmHWM:\t  700 kB\nVmRSS:\t  500 kB\n",
}


def test_without_a_limit_the_host_counts(tmp_path: Path) -> None:
    memory = write(tmp_path, HOST).read()
    assert (memory.total, memory.free, memory.process) == (8192 * KIB, 4096 * KIB, 500 * KIB)


def test_a_name_that_the_kernel_cut_inside_a_character(tmp_path: Path) -> None:
    memory = write(tmp_path, HOST)
    status = b"Name:\t" + "é".encode() * 7 + b"\xc3\nVmHWM:\t  700 kB\nVmRSS:\t  500 kB\n"
    (tmp_path / "proc/self/status").write_bytes(status)
    read = memory.read()
    assert (read.process, read.peak) == (500 * KIB, 700 * KIB)


def test_cgroup_v2_the_tightest_level_counts(tmp_path: Path) -> None:
    memory = write(
        tmp_path,
        {
            **HOST,
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/b/memory.current": "100\n",
            "sys/fs/cgroup/a/memory.max": f"{4 * MIB}\n",
            "sys/fs/cgroup/a/memory.current": f"{3 * MIB}\n",
            "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {MIB}\n",
        },
    ).read()
    assert (memory.total, memory.free) == (4 * MIB, 2 * MIB)  # the page cache can be had back


def test_cgroup_v1(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/memory/docker/x"
    memory = write(
        tmp_path,
        {
            **HOST,
            "proc/self/cgroup": "3:cpu,cpuacct:/docker/x\n2:memory:/docker/x\n1:name=systemd:/docker/x\n",
            f"{base}/memory.limit_in_bytes": f"{2 * MIB}\n",
            f"{base}/memory.usage_in_bytes": f"{MIB}\n",
            f"{base}/memory.stat": f"total_inactive_file {MIB // 2}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
        },
    ).read()
    assert (memory.total, memory.free) == (2 * MIB, 3 * MIB // 2)


def test_a_cgroup_path_outside_our_view_reads_the_root(tmp_path: Path) -> None:
    memory = write(
        tmp_path,
        {
            **HOST,
            "proc/self/cgroup": "0::/../../elsewhere\n",
            "sys/fs/cgroup/memory.max": f"{MIB}\n",
            "sys/fs/cgroup/memory.current": f"{2 * MIB}\n",
        },
    ).read()
    assert (memory.total, memory.free) == (MIB, 0)


def test_peak_counts_from_the_reset(tmp_path: Path) -> None:
    memory = write(tmp_path, HOST)
    assert memory.read().peak == 700 * KIB
    memory.reset_peak()
    assert memory.read().peak == 500 * KIB  # the old high-water mark was before the reset
    write(tmp_path, {"proc/self/status": "VmHWM: 700 kB\nVmRSS: 600 kB\n"})
    assert memory.read().peak == 600 * KIB
    write(tmp_path, {"proc/self/status": "VmHWM: 900 kB\nVmRSS: 550 kB\n"})
    assert memory.read().peak == 900 * KIB


def test_without_proc_there_is_still_an_answer(tmp_path: Path) -> None:
    memory = HostMemory(tmp_path).read()
    assert memory.total > 0
    assert memory.process == 0


def test_the_real_host() -> None:
    device = HostDevice()
    memory = device.memory()
    assert 0 < memory.free <= memory.total
    assert 0 < memory.process < memory.total
    assert memory.total <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_what_was_freed_is_given_back() -> None:  # E7
    """glibc has it all below the block that is kept, and would keep it for good."""
    ctypes.CDLL(None).malloc_trim(0)  # else blocks would be of what others have freed, which is resident
    device = HostDevice()
    device.empty_cache()
    before = device.memory().process
    blocks = [b"x" * 100_000 for _ in range(2000)]
    kept = blocks[-1]
    blocks.clear()
    assert device.memory().process - before > 150 * MIB
    device.empty_cache()
    assert device.memory().process - before < 50 * MIB
    assert len(kept) == 100_000


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 4), ("x", 4)])
def test_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    write(tmp_path, {"sys/fs/cgroup/cpu.max": quota})
    assert available_cores(tmp_path) == cores


def test_host_device_verbs() -> None:
    device = HostDevice()
    assert (device.kind, device.name(), device.count()) == ("cpu", "cpu", 1)
    assert device.unavailable_reason() is None
    device.set_current(0)
    with pytest.raises(ValueError, match="there is one cpu device, index 0, not 1"):
        device.set_current(1)
    for verb in (device.empty_cache, device.reset_peak, device.synchronize, device.touch_math_library):
        verb()
    device.seed(1)
    device.set_threads(1)
    assert device.supports_dtype("bfloat16")
    assert not device.supports_dtype("int3")
    assert (device.collective_backend(), device.visible_env()) == ("", "")


def test_serve_request_table_and_host_device_import_without_torch() -> None:
    code = (
        "import sys; from enginebay.worker import HostDevice, RequestTable, serve; "
        "print(sorted({'torch', 'transformers', 'numpy', 'zmq', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
