"""One group's death or hang is no other's, and all end by one deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from enginebay.engine.client import InProcessClient
from enginebay.engine.replicas.replicas import ReplicaSet
from enginebay.errors import EngineDead, WorkerLost
from enginebay.messages import ReadStatus
from support.fake_engine import FakeEngine, text_token
from support.groups import PATIENCE, Groups, Sink, ask, run, until


def test_a_group_that_hangs_holds_up_no_other(make_groups: Callable[..., Groups]) -> None:
    groups = make_groups(2)
    groups.hold(0)
    hung, *others = [Sink() for _ in range(6)]
    groups.set.add_request(ask("hung", max_tokens=64), hung)
    assert groups.held[0].wait(PATIENCE)
    for number, sink in enumerate(others):
        groups.set.add_request(ask(f"r{number}"), sink)
        until(sink.ended)
    assert not hung.outputs
    assert groups.engines[1].core.stats().finished == 5
    groups.gates[0].set()
    until(hung.ended)


def test_the_death_of_a_group_is_no_requests_end(make_groups: Callable[..., Groups]) -> None:
    groups = make_groups(2)
    groups.hold(0)
    groups.hold(1)
    first, second = Sink(), Sink()
    groups.set.add_request(ask("a", max_tokens=30), first)
    groups.set.add_request(ask("b", max_tokens=30), second)
    for held in groups.held:
        assert held.wait(PATIENCE)
    groups.kill(0)
    for gate in groups.gates:
        gate.set()
    until(lambda: first.ended() and second.ended())
    assert not first.errors
    assert first.tokens == second.tokens == [text_token(b"hi", index) for index in range(30)]
    sinks = run(groups, *(ask(f"later{i}") for i in range(4)))
    assert all(len(sink.tokens) == 3 for sink in sinks)
    assert groups.set.loads == (None, 0)
    groups.set.check_alive()
    assert groups.set.stats().finished >= 5  # a dead group says how it stood last
    health = groups.set.control(ReadStatus()).result(PATIENCE).health
    assert health is not None
    assert (health.healthy, health.why) == (False, "group 0 is lost")


def test_the_engine_is_dead_when_its_last_group_is(make_groups: Callable[..., Groups]) -> None:
    groups = make_groups(2)
    for index in range(2):
        groups.kill(index, f"the worker of group {index} ended")
    sinks = run(groups, ask("a"), ask("b"))
    assert all(type(sink.errors[0]) is WorkerLost for sink in sinks)
    with pytest.raises(WorkerLost) as caught:
        groups.set.add_request(ask("c"), Sink())
    assert str(caught.value) == (
        "group 0: the engine stopped: the worker of group 0 ended; "
        "group 1: the engine stopped: the worker of group 1 ended"
    )
    assert groups.set.loads == (None, None)


def test_a_request_finds_a_group_whose_end_was_not_seen_yet(make_groups: Callable[..., Groups]) -> None:
    """It ends between the choice and the sending: the request goes elsewhere, and nobody notices."""
    groups = make_groups(2)
    client = groups.set._clients[0]
    looked = groups.set._look
    groups.set._look = lambda: (looked(), client.stop())[0]  # type: ignore[func-returns-value, method-assign]  # the moment
    sink = Sink()
    groups.set.add_request(ask("a"), sink)
    groups.set._look = looked  # type: ignore[method-assign]  # as it was
    until(sink.ended)
    assert len(sink.tokens) == 3
    assert groups.engines[1].core.stats().finished == 1


def test_all_end_by_one_deadline_and_the_end_is_told_once(make_groups: Callable[..., Groups]) -> None:  # X13
    groups = make_groups(4, stop_timeout=0.3)
    sinks = [Sink() for _ in range(4)]
    for number, sink in enumerate(sinks):
        groups.hold(number)
        groups.set.add_request(ask(f"r{number}", max_tokens=100), sink)
    for held in groups.held:
        assert held.wait(PATIENCE)
    deadlines = []
    for client in groups.set._clients:
        begin = client.begin_stop
        client.begin_stop = lambda at, begin=begin: deadlines.append(begin(at)) or at  # type: ignore[method-assign, misc, func-returns-value]  # watched
    stopping = threading.Thread(target=groups.set.stop)
    stopping.start()
    until(lambda: len(deadlines) >= 4)
    assert len(set(deadlines)) == 1
    for gate in groups.gates:
        gate.set()
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    groups.set.stop()
    until(lambda: bool(groups.ends))
    assert len(groups.ends) == 1
    assert all(sink.ended() for sink in sinks)
    with pytest.raises(EngineDead, match="the engine is closed; make a new one"):
        groups.set.add_request(ask("late"), Sink())
    with pytest.raises(EngineDead, match="the engine is closed; make a new one"):
        groups.set.stats()


def test_a_start_that_fails_half_way_stops_all(monkeypatch: pytest.MonkeyPatch) -> None:  # X14
    engines = [FakeEngine() for _ in range(3)]
    replicas = ReplicaSet([one.core for one in engines], stop_timeout=5.0)
    start = InProcessClient.start
    started: list[InProcessClient] = []

    def fails(self: InProcessClient) -> None:
        started.append(self)
        if len(started) == 2:
            engines[1].core.stop()
            raise RuntimeError("no thread is left")
        start(self)

    monkeypatch.setattr(InProcessClient, "start", fails)
    with pytest.raises(RuntimeError, match="no thread is left"):
        replicas.start()
    assert [one.executor.stopped for one in engines] == [1, 1, 1]
