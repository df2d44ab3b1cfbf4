"""A bell that is closed rings nowhere: not in whatever has its number by then."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from enginebay.runtime import system_runtime
from enginebay.transport.doorbell import Bell
from enginebay.transport.front_address import FrontAddress
from enginebay.transport.front_door import FrontDoor
from enginebay.transport.front_wire import FrontWire
from enginebay_mp.monitor import Monitor


def rings(fd: int) -> int:
    """How often an eventfd has been rung since it was looked at."""
    return os.eventfd_read(fd) if select.select([fd], [], [], 0)[0] else 0


def door(folder: Path) -> tuple[Callable[[], None], Callable[[], None], Bell]:
    one = FrontDoor(FrontAddress.parse(f"ipc://{folder}/front"), None)
    return one.wake, one.close, one._wake


def wire(folder: Path) -> tuple[Callable[[], None], Callable[[], None], Bell]:
    one = FrontWire(FrontAddress.parse(f"ipc://{folder}/front"), None)
    return one.wake, one.close, one._wake


def monitor(folder: Path) -> tuple[Callable[[], None], Callable[[], None], Bell]:
    one = Monitor(system_runtime(), "never started", tick=lambda: None, at_end=lambda: None)
    return lambda: one.post(lambda: None), one.close, one._wake


def bell(folder: Path) -> tuple[Callable[[], None], Callable[[], None], Bell]:
    one = Bell()
    return one.ring, one.close, one


@pytest.fixture(params=[bell, door, wire, monitor], ids=lambda make: make.__name__)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Callable[[], None], Callable[[], None], Bell]:
    tmp_path.chmod(0o700)
    return request.param(tmp_path)


@pytest.fixture
def stranger() -> Iterator[Callable[[int], int]]:
    """Gives a descriptor of somebody else's the number that is asked for."""
    taken = []

    def take(number: int) -> int:
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        if fd != number:
            os.dup2(fd, number, inheritable=False)
            os.close(fd)
        taken.append(number)
        return number

    yield take
    for fd in taken:
        os.close(fd)


def test_what_is_woken_after_its_end_touches_no_stranger(
    made: tuple[Callable[[], None], Callable[[], None], Bell], stranger: Callable[[int], int]
) -> None:
    wake, close, its = made
    number = its.fileno()
    wake()
    assert rings(number) == 1
    close()
    theirs = stranger(number)
    wake()
    close()
    wake()
    assert its.fileno() == -1
    assert rings(theirs) == 0  # neither written to nor closed


def test_threads_that_ring_while_it_is_closed(stranger: Callable[[int], int]) -> None:
    for _ in range(50):
        one = Bell()
        number, begun, ended = one.fileno(), threading.Event(), threading.Event()

        def ring(one: Bell = one, begun: threading.Event = begun, ended: threading.Event = ended) -> None:
            while not ended.is_set():
                one.ring()
                begun.set()

        threads = [threading.Thread(target=ring) for _ in range(2)]
        for thread in threads:
            thread.start()
        begun.wait()
        closers = [threading.Thread(target=one.close) for _ in range(2)]
        for thread in closers:
            thread.start()
        for thread in closers:
            thread.join()
        fresh = Bell()  # takes the number, most likely
        rung = rings(fresh.fileno())
        ended.set()
        for thread in threads:
            thread.join()
        fresh.close()
        assert rung == 0, f"number {number}"


def test_a_bell_keeps_that_it_was_rung() -> None:
    one = Bell()
    one.clear()
    one.ring()
    one.ring()
    assert rings(one.fileno()) == 2
    one.ring()
    one.clear()
    assert rings(one.fileno()) == 0
    one.close()
    one.clear()
    with pytest.raises(ValueError, match="negative"):
        select.select([one], [], [], 0)
