"""Memory on a device is free when the driver lists its worker no more, if it ever did; else nobody knows."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.engine.device_memory import DeviceMemory, holders_by_nvml
from enginebay.engine.recovery import NoWayBack
from enginebay.engine.supervision import Supervision
from enginebay.messages import WorkerInfo
from enginebay.runtime import Runtime
from support.clock import FakeClock, fake_runtime
from support.reclaiming import Stopped

PID = 2**30  # of no process
HERE = socket.gethostname()


class Inline:
    """Threads that have ended when they were started; those that hang have not begun."""

    def __init__(self) -> None:
        self.hangs = False

    def thread(self, name: str, target: Callable[[], None]) -> None:
        if not self.hangs:
            target()


class Driver:
    """Lists whom the test says, or raises. ``memory`` asks it."""

    def __init__(self) -> None:
        self.clock, self.threads = FakeClock(), Inline()
        real = fake_runtime(self.clock)
        self.runtime = Runtime(
            clock=self.clock,
            transport=real.transport,
            spawner=self.threads,  # type: ignore[arg-type]  # what is asked of it here
            entropy=real.entropy,
        )
        self.listed: frozenset[int] | BaseException = frozenset({PID, 7})
        self.memory = DeviceMemory(self.runtime, self)

    def __call__(self) -> frozenset[int]:
        if isinstance(self.listed, BaseException):
            raise self.listed
        return self.listed

    def take(self, device: str = "cuda:0", host: str = HERE, pid: int = PID) -> None:
        worker = WorkerInfo(rank=0, local_rank=0, incarnation="i", host=host, pid=pid, device=device)
        self.memory.taken("i", worker)

    def said(self) -> list[tuple[str, str]]:
        return [(found.verdict, found.reason) for found in self.memory.findings("i")]


def test_one_that_is_listed_holds_some_until_it_is_not() -> None:  # T14
    driver = Driver()
    driver.take()
    assert driver.said() == [("Pending", f"pid {PID} holds some")]
    driver.listed = frozenset({7})
    assert driver.said() == [("Reclaimed", "")]
    driver.memory.forget("i")
    assert driver.said() == []


@pytest.mark.parametrize("device", ["", "cpu"])
def test_host_memory_goes_with_its_process(device: str) -> None:
    driver = Driver()
    driver.take(device)
    assert driver.said() == []


@pytest.mark.parametrize(
    ("taken", "why"),
    [
        ({"device": "xpu:0"}, "nobody here can say who holds memory on xpu:0"),
        ({"host": "elsewhere"}, "cuda:0 is of another host"),
        ({"pid": os.getpid()}, "the worker was a thread of this process, which goes on with cuda:0"),
        ({"pid": PID - 1}, f"the driver did not list pid {PID - 1} while it lived"),
    ],
)
def test_what_could_not_be_seen_is_never_said_to_be_free(taken: dict[str, Any], why: str) -> None:  # T14
    driver = Driver()
    driver.take(**taken)
    driver.listed = frozenset()
    assert driver.said() == [("Unknown", why)]


@pytest.mark.parametrize("early", [True, False], ids=["while it lives", "later"])
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ModuleNotFoundError("No module named 'pynvml'"), "ModuleNotFoundError: No module named 'pynvml'"),
        (RuntimeError("Driver Not\nLoaded"), "RuntimeError: Driver Not"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_a_driver_that_does_not_say_leaves_it_unknown(error: BaseException, why: str, early: bool) -> None:
    driver = Driver()
    if early:
        driver.listed = error
        driver.take()
        driver.listed = frozenset()
    else:
        driver.take()
        driver.listed = error
    ((verdict, reason),) = driver.said()
    assert verdict == "Unknown"
    assert reason.startswith(f"the driver's list of processes cannot be had: {why}")


def test_a_driver_that_hangs_is_waited_for_a_moment() -> None:
    driver = Driver()
    driver.take()
    driver.threads.hangs = True
    begun = driver.clock.time
    assert driver.said() == [("Unknown", "the driver has not answered within 2 s")]
    assert driver.clock.time == begun + 2.0


def test_the_bindings_are_asked_for_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    pids = {0: [4, 5], 1: [5, 6]}
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetComputeRunningProcesses=lambda index: [SimpleNamespace(pid=pid) for pid in pids[index]],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert holders_by_nvml() == {4, 5, 6}


class Group(Stopped):
    """One worker on ``cuda:0``, which was lost and stopped; its memory is held until ``free_at``."""

    def __init__(self, device: str, free_at: float) -> None:
        self.driver = Driver()
        clock = self.driver.clock
        holders = Supervision(self.driver.runtime, {}, holders=lambda: frozenset({PID} if clock.time < free_at else ()))

        def found(incarnation: str) -> WorkerInfo:
            return WorkerInfo(rank=0, local_rank=0, incarnation=incarnation, host=HERE, pid=PID, device=device)

        super().__init__(self.driver.runtime, holders, "cuda", found=found, lost=True)


def test_no_new_worker_comes_while_the_old_one_s_memory_is_held() -> None:  # T14, T15
    group = Group("cuda:0", free_at=109.0)
    assert group.said() == ("Reclaiming", "False", f"Waiting: device memory: Pending (pid {PID} holds some)")
    group.roster.reclaim(30.0)
    assert 109.0 <= group.driver.clock.time < 111.0
    assert group.said() == ("Failed", "True", "Free: ")


def test_memory_that_is_not_given_back_fences_the_device_off() -> None:
    group = Group("cuda:0", free_at=1e9)
    with pytest.raises(NoWayBack, match=r"^group-0/rank-0/cuda:0 is quarantined: .* device memory: Pending"):
        group.roster.reclaim(30.0)


def test_what_nobody_can_know_of_a_device_is_said_and_holds_nothing_up() -> None:
    group = Group("xpu:0", free_at=1e9)
    assert group.said() == ("Failed", "Unknown", "Free: nobody here can say who holds memory on xpu:0")
