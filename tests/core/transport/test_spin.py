"""Both ends look for what often follows at once, where there are two processors, and then sleep by their bell."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator

import pytest

from enginebay.runtime import ChannelClosed
from enginebay.transport import decode_reply
from enginebay.transport.moment import Moment
from enginebay.transport.ring import RingWriter
from enginebay.transport.shared import EngineEnd, WorkerEnd
from support.rings import attach_here


def _nothing() -> None:
    """What happens before most looks."""


class Line:
    """Both ends of one rank's line, what came of the moments in which either looked, how often the worker slept, and
    who fetched the memory of its next frame."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, processors: int) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(processors)))
        self.end = EngineEnd.create([0])
        self.worker = attach_here(self.end, 0)
        self.looked: list[bool] = []
        self.slept = 0
        self.first_look: Callable[[], object] = _nothing
        """What happens before a moment's first look."""
        look, wait = Moment.look, WorkerEnd._wait

        def looks(moment: Moment, there: Callable[[], object]) -> bool:
            looks = 0

            def counted() -> object:
                nonlocal looks
                if not looks:
                    self.first_look()
                looks += 1
                return there()

            found = look(moment, counted)
            if looks:
                self.looked.append(found)
            return found

        def sleeps(worker: WorkerEnd, deadline: float | None) -> None:
            self.slept += 1
            wait(worker, deadline)

        self.fetched: list[RingWriter] = []
        fetch = RingWriter.fetch

        def fetches(writer: RingWriter) -> None:
            self.fetched.append(writer)
            fetch(writer)

        monkeypatch.setattr(RingWriter, "fetch", fetches)
        monkeypatch.setattr(Moment, "look", looks)
        monkeypatch.setattr(WorkerEnd, "_wait", sleeps)

    def waits_in_vain(self) -> None:
        with pytest.raises(TimeoutError):
            self.worker.receive(time.monotonic() + 0.002)

    def answers(self) -> None:
        """The worker's answer to what it was sent."""
        assert self.worker.receive(None) == b"x"
        self.worker.reply(1, 1, b"y")


@pytest.fixture
def line(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    one = Line(monkeypatch, request.param)
    yield one
    one.worker.close()
    one.end.close()


@pytest.mark.parametrize("line", [2], indirect=True)
def test_a_worker_looks_once_after_its_replies(line: Line) -> None:
    line.waits_in_vain()
    assert line.looked == []  # one that was never asked anything is idle
    for _ in range(3):
        line.end.send(b"x")
        line.answers()
    line.waits_in_vain()
    line.waits_in_vain()
    assert line.looked == [False]
    assert line.slept >= 3


@pytest.mark.parametrize("line", [2], indirect=True)
def test_a_call_that_comes_meanwhile_is_taken_without_a_sleep(line: Line) -> None:
    line.worker.reply(1, 1, b"")
    line.first_look = lambda: line.end.send(b"y")
    assert line.worker.receive(None) == b"y"
    assert (line.looked, line.slept) == ([True], 0)
    line.first_look = _nothing
    line.waits_in_vain()  # the bell that it did not wait for rings into its next sleep, and no frame is behind it


@pytest.mark.parametrize("line", [2], indirect=True)
def test_the_engine_looks_once_after_what_it_sends(line: Line) -> None:
    assert (line.end.look(), line.looked) == ([], [])
    line.end.send(b"x")
    assert [line.end.look(), line.end.look()] == [[], []]
    assert line.looked == [False]


@pytest.mark.parametrize("line", [2], indirect=True)
def test_a_reply_that_comes_while_the_engine_looks_comes_out_once(line: Line) -> None:
    line.end.send(b"x")
    line.first_look = line.answers
    [(rank, frame)] = line.end.look()
    assert (rank, *decode_reply(frame)) == (0, 1, 1, b"y")
    line.first_look = _nothing
    assert line.end.look() == []
    poll = select.poll()
    poll.register(line.end.fileno_of_replies(), select.POLLIN)
    assert poll.poll(0), "whoever sleeps by the bell hears of each reply"
    assert (line.end.take_replies(), poll.poll(0)) == ([], [])


@pytest.mark.parametrize("line", [2], indirect=True)
def test_what_the_engine_looks_for_is_checked_like_all_that_comes(line: Line) -> None:
    line.end.send(b"x")
    line.worker._own_words[0] = 1 << 40  # a head that cannot be
    assert line.end.look() == []
    assert line.end.lost[0].startswith("its reply ring is damaged: no record can be there: ")


@pytest.mark.parametrize("line", [2], indirect=True)
def test_nobody_looks_at_a_closed_line(line: Line) -> None:
    line.end.send(b"x")
    line.end.close()
    with pytest.raises(ChannelClosed):
        line.end.look()
    assert line.looked == []


@pytest.mark.parametrize("line", [1], indirect=True)
def test_never_where_the_other_end_has_the_same_processor(line: Line) -> None:
    line.worker.reply(1, 1, b"")
    assert len(line.end.take_replies()) == 1
    line.waits_in_vain()
    line.end.send(b"x")
    assert line.end.look() == []
    assert line.looked == []
    assert line.fetched == []


@pytest.mark.parametrize("line", [1], indirect=True)
def test_what_is_there_already_is_taken_without_a_moment(line: Line) -> None:
    line.end.send(b"x")
    line.answers()
    [(rank, frame)] = line.end.look()
    assert (rank, *decode_reply(frame)) == (0, 1, 1, b"y")
    assert line.looked == []


@pytest.mark.parametrize("line", [2], indirect=True)
def test_who_will_look_fetches_the_memory_of_its_next_frame(line: Line) -> None:
    line.end.send(b"x")
    line.answers()
    assert line.fetched == [line.end._ring, line.worker._replies]
