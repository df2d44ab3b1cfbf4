"""The client of a core in this process: what it waits for, and for how long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from enginebay.engine import collector as module
from enginebay.engine.admission.admit import Ask
from enginebay.engine.client import InProcessClient
from enginebay.engine.collector import Collector
from enginebay.engine.loop import EngineLoop
from enginebay.errors import DuplicateRequest, EngineDead, InvalidRequest, WorkerHung
from enginebay.messages import SamplingParams, SchedulerOutput
from support.fake_engine import FakeEngine

ASK = Ask(request_id="a", prompt_token_ids=tuple(b"hi"), params=SamplingParams(max_tokens=2))


class Held:
    """A step that does not end until it is let go."""

    def __init__(self) -> None:
        self.runs, self.go_on = threading.Event(), threading.Event()

    def __call__(self, output: SchedulerOutput) -> None:
        self.runs.set()
        assert self.go_on.wait(20)


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.go_on.set()


def started(held: Held, *, step_timeout: float) -> InProcessClient:
    """A client whose engine is in a step that ``held`` holds."""
    engine = FakeEngine()
    engine.executor.before = held
    client = InProcessClient(engine.core, stop_timeout=0.05, step_timeout=step_timeout)
    client.start()
    client.add_request(ASK, Collector())
    assert held.runs.wait(20)
    return client


def test_stats_wait_for_a_step_that_is_longer_than_a_stop(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    client = started(held, step_timeout=20)
    threading.Timer(0.4, held.go_on.set).start()
    assert client.stats().steps == 1
    client.stop()


def test_stats_that_never_come_say_what_to_look_at(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    client = started(held, step_timeout=0.1)
    with pytest.raises(WorkerHung) as caught:
        client.stats()
    assert str(caught.value) == (
        "the engine has not said how it stands for 0.25 s: a step, or the scheduler, does not come to its end "
        "([deadlines] step)"
    )
    held.go_on.set()
    client.stop()


def test_nobody_waits_for_a_thread_that_ended_without_a_word(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    client = started(held, step_timeout=20)
    with monkeypatch.context() as patch:
        patch.setattr(EngineLoop, "is_alive", lambda self: False)
        begun = time.monotonic()
        for call in (lambda: Collector().wait(client), client.stats, lambda: client.abort("a")):
            with pytest.raises(EngineDead, match=r"^the engine stopped: its thread has ended$"):
                call()
        assert time.monotonic() - begun < 1.0
    held.go_on.set()
    client.stop()


def test_its_end_is_told_once_and_last(held: Held) -> None:
    engine, order = FakeEngine(), []
    client = InProcessClient(engine.core, stop_timeout=5, on_end=lambda: order.append(engine.hooks.stopped))
    client.start()
    client.stop()
    client.stop()
    assert order == [1]


def test_a_start_that_fails_stops_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: EngineLoop, body: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(EngineLoop, "start", refuse)
    engine = FakeEngine()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        InProcessClient(engine.core, stop_timeout=5).start()
    assert (engine.executor.stopped, engine.hooks.stopped) == (1, 1)


def test_of_a_batch_all_are_sent_or_none() -> None:
    engine = FakeEngine()
    client = InProcessClient(engine.core, stop_timeout=5)
    client.start()
    collector = Collector(only_ends=True)
    bad = Ask(request_id="b", prompt_token_ids=(), params=SamplingParams(max_tokens=2))
    twice = "request id 'a' is in use by an unfinished request: choose another, or abort that one"
    with pytest.raises(DuplicateRequest, match=f"^{twice}$"):
        client.add_requests([(ASK, collector), (ASK, collector)])
    with pytest.raises(InvalidRequest, match=r"^the prompt is empty"):
        client.add_requests([(ASK, collector), (bad, collector)])
    good = Ask(request_id="b", prompt_token_ids=(1,), params=SamplingParams(max_tokens=2))
    client.add_requests([(ASK, collector), (good, collector)])  # the id is free: nothing was sent
    ended: list[str] = []
    while len(ended) < 2:
        ended += [output.request_id for output in collector.wait(client)]
    assert ended == ["a", "b"]
    assert [len(step.new) for step in engine.executor.steps][:1] == [2]
    client.stop()
    with pytest.raises(EngineDead):
        client.add_requests([(ASK, collector)])
