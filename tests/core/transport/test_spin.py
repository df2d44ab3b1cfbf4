"""A worker looks for the next call for a moment after a reply, where there are processors enough, and then sleeps."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from enginebay.transport.shared import EngineEnd, WorkerEnd
from support.rings import attach_here


class Line:
    """Both ends of one rank's line, and how often the worker looked and slept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, processors: int) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(processors)))
        self.end = EngineEnd.create([0])
        self.worker = attach_here(self.end, 0)
        self.looked: list[bool] = []
        self.slept = 0
        spin, wait = WorkerEnd._spin, WorkerEnd._wait

        def looks(worker: WorkerEnd) -> bool:
            self.looked.append(spin(worker))
            return self.looked[-1]

        def sleeps(worker: WorkerEnd, deadline: float | None) -> None:
            self.slept += 1
            wait(worker, deadline)

        monkeypatch.setattr(WorkerEnd, "_spin", looks)
        monkeypatch.setattr(WorkerEnd, "_wait", sleeps)

    def waits_in_vain(self) -> None:
        with pytest.raises(TimeoutError):
            self.worker.receive(time.monotonic() + 0.002)


@pytest.fixture
def line(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    one = Line(monkeypatch, request.param)
    yield one
    one.worker.close()
    one.end.close()


@pytest.mark.parametrize("line", [2], indirect=True)
def test_once_after_each_reply(line: Line) -> None:
    line.waits_in_vain()
    assert line.looked == []  # one that was never asked anything is idle
    for _ in range(3):
        line.end.send(b"x")
        assert line.worker.receive(None) == b"x"
        line.worker.reply(1, 1, b"")
    line.waits_in_vain()
    line.waits_in_vain()
    assert line.looked == [False]
    assert line.slept >= 3


@pytest.mark.parametrize("line", [2], indirect=True)
def test_what_comes_while_it_looks_is_taken_without_a_sleep(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.worker.reply(1, 1, b"")
    clock, now = time.perf_counter, iter([b"y"])

    def at_its_first_look() -> float:
        for frame in now:
            line.end.send(frame)
        return clock()

    monkeypatch.setattr(time, "perf_counter", at_its_first_look)
    assert line.worker.receive(None) == b"y"
    assert (line.looked, line.slept) == ([True], 0)
    line.waits_in_vain()  # the bell that it did not wait for rings into its next sleep, and no frame is behind it


@pytest.mark.parametrize("line", [1], indirect=True)
def test_never_where_it_would_take_the_engines_processor(line: Line) -> None:
    line.worker.reply(1, 1, b"")
    line.waits_in_vain()
    assert line.looked == []
