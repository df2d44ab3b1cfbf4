"""Whoever waits for a call's answer takes it from the line itself, when it comes within a moment."""

from __future__ import annotations

import os
import threading

import pytest

from enginebay.messages import StepResult
from enginebay.transport import shared_engine
from enginebay.transport.shared import EngineEnd
from plugins.mp.conftest import Drive


def test_the_thread_that_waits_takes_the_answer(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    look = EngineEnd.look

    def counted(end: EngineEnd) -> list[tuple[int, bytes]]:
        looked.append(threading.current_thread().name)
        return look(end)

    monkeypatch.setattr(EngineEnd, "look", counted)
    monkeypatch.setattr(shared_engine, "_LOOK_SECONDS", 60.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    driver = drive(1)
    driver.ready()
    answers = [driver.call(driver.next_step()[0])]
    assert looked == []  # in the main thread Ctrl-C could come between an answer and its call
    with monkeypatch.context() as patch:
        patch.setattr(EngineEnd, "take_replies", lambda end: [])  # the monitor hears of nothing
        waiting = threading.Thread(target=lambda: answers.append(driver.call(driver.next_step()[0])), name="waiting")
        waiting.start()
        waiting.join(60)
    assert looked == ["waiting"]
    assert [type(answer) for answer in answers] == [StepResult, StepResult]
