"""What the engine's log says of drains and of its end: whether anything was left."""

from __future__ import annotations

from concurrent.futures import Future

from enginebay.engine.service.telling import Telling
from enginebay.messages import Control, ControlDone, Drain, Resume
from enginebay.runtime import system_runtime


def told(*asked: tuple[Control, int]) -> list[str]:
    """The lines of these commands, each of which leaves so many requests, and of a stop after them."""
    lines: list[str] = []
    telling = Telling(lines.append, system_runtime().clock)
    for command, unfinished in asked:
        done = Future[ControlDone]()
        done.add_done_callback(telling.begun(command))
        done.set_result(ControlDone(facts={"unfinished": str(unfinished)}))
    telling.stopping()
    return lines


def test_a_stop_says_whether_anything_is_aborted() -> None:
    aborted = "stop: asked for by a front end; unfinished requests are aborted"
    assert told()[-1] == aborted
    assert told((Drain(), 0))[-1] == "stop: asked for by a front end; nothing is unfinished"
    assert told((Drain(), 0), (Resume(), 0))[-1] == aborted
    assert told((Drain(), 0), (Drain(), 2))[-1] == aborted


def test_a_drain_that_left_requests_is_not_done() -> None:
    begun, ended, _ = told((Drain(), 3))
    assert begun == "drain: begun"
    assert ended == "drain: over after 0.0 s, and unfinished: 3"
