"""Several groups behind one front end: requests are shared out, taken together, aborted where they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from enginebay.engine.client import InProcessClient
from enginebay.engine.collector import Collector
from enginebay.engine.replicas.replicas import ReplicaSet
from enginebay.errors import DuplicateRequest, EngineDead, RequestTooLong, UnknownRequest
from enginebay.messages import FinishReason, RequestOutput
from support.fake_engine import FakeEngine, text_token
from support.groups import PATIENCE, Groups, Sink, ask, run, until


def test_requests_are_shared_out_and_answered_as_one_group_does(make_groups: Callable[..., Groups]) -> None:
    groups = make_groups(2)
    sinks = run(groups, *(ask(f"r{i}", f"prompt {i}", 5) for i in range(8)))
    for i, sink in enumerate(sinks):
        assert sink.tokens == [text_token(f"prompt {i}".encode(), n) for n in range(5)]
    assert [one.core.stats().finished for one in groups.engines] == [4, 4]
    assert groups.set.loads == (0, 0)
    stats = groups.set.stats()
    assert (stats.finished, stats.unfinished, stats.committed_tokens) == (8, 0, 40)
    assert stats.scheduler.num_blocks == stats.scheduler.num_free_blocks == 128


def test_all_choices_of_a_request_stay_in_one_group(make_groups: Callable[..., Groups]) -> None:
    groups = make_groups(2, features=frozenset({"n"}))
    sink = Sink()
    groups.set.add_request(ask("many", "say:choice %", 20, n=3, temperature=1.0), sink)
    until(lambda: sum(output.finish_reason is not None for output in sink.outputs) == 3)
    assert sorted(one.core.stats().finished for one in groups.engines) == [0, 3]
    assert groups.set.loads == (0, 0)


def test_several_are_taken_together_or_not_at_all(make_groups: Callable[..., Groups]) -> None:
    groups = make_groups(2)
    groups.hold(0)
    groups.hold(1)
    running = Sink()
    groups.set.add_request(ask("a"), running)
    sinks = [Sink() for _ in range(4)]
    with pytest.raises(DuplicateRequest, match="request id 'a' is in use"):
        groups.set.add_requests([(ask(name), sink) for name, sink in zip("bcad", sinks, strict=True)])
    with pytest.raises(DuplicateRequest, match="request id 'e' is in use"):
        groups.set.add_requests([(ask("e"), Sink()), (ask("e"), Sink())])
    for gate in groups.gates:
        gate.set()
    again = Sink()
    groups.set.add_requests([(ask(name), again) for name in "bcde"])
    until(lambda: sum(output.finish_reason is not None for output in again.outputs) == 4)
    until(running.ended)
    assert not any(sink.outputs or sink.errors for sink in sinks)
    assert groups.set.loads == (0, 0)


def test_an_interrupted_sending_frees_the_ids(
    make_groups: Callable[..., Groups], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = make_groups(2)
    add = InProcessClient.add_requests
    sent: list[int] = []

    def interrupted(self: InProcessClient, *args: Any, **rest: Any) -> None:
        sent.append(1)
        if len(sent) == 2:
            raise KeyboardInterrupt
        add(self, *args, **rest)

    monkeypatch.setattr(InProcessClient, "add_requests", interrupted)
    with pytest.raises(KeyboardInterrupt):
        groups.set.add_requests([(ask(name, max_tokens=100), Sink()) for name in "ab"])
    monkeypatch.undo()
    until(lambda: groups.set.loads == (0, 0))
    assert all(len(sink.tokens) == 3 for sink in run(groups, ask("a"), ask("b")))


def test_an_abort_reaches_the_group_of_its_request(make_groups: Callable[..., Groups]) -> None:
    groups = make_groups(3)
    sinks = [Sink() for _ in range(3)]
    for number, sink in enumerate(sinks):
        groups.hold(number)
        groups.set.add_request(ask(f"r{number}", max_tokens=100), sink)
    for held in groups.held:
        assert held.wait(PATIENCE)
    groups.set.abort("r1")
    groups.set.abort_quietly("r2", sinks[0])  # another's: it is left alone
    groups.set.abort_quietly("r0", sinks[0])
    groups.set.abort_quietly("nobody", sinks[0])
    with pytest.raises(UnknownRequest, match="no unfinished request has the id 'nobody'"):
        groups.set.abort("nobody")
    for gate in groups.gates:
        gate.set()
    until(lambda: all(sink.ended() for sink in sinks))
    assert [sink.outputs[-1].finish_reason for sink in sinks] == [
        FinishReason.ABORT,
        FinishReason.ABORT,
        FinishReason.LENGTH,
    ]


def test_a_request_must_fit_into_every_group(make_groups: Callable[..., Groups]) -> None:
    large, small = FakeEngine(max_model_len=128), FakeEngine(max_model_len=32)
    replicas = ReplicaSet([large.core, small.core], stop_timeout=5.0)
    replicas.start()
    try:
        with pytest.raises(RequestTooLong):
            replicas.validate(ask("a", "x" * 40))
        replicas.validate(ask("a", "x" * 20))
    finally:
        replicas.stop()


def test_a_group_more_takes_requests_at_once(make_groups: Callable[..., Groups]) -> None:
    groups = make_groups(1)
    groups.hold(0)
    held = Sink()
    groups.set.add_request(ask("held", max_tokens=50), held)
    more = FakeEngine()
    assert groups.set.add(more.core) == 1
    sinks = run(groups, ask("a"), ask("b"))
    assert all(len(sink.tokens) == 3 for sink in sinks)
    assert more.core.stats().finished == 2
    groups.gates[0].set()
    until(held.ended)
    groups.set.stop()
    assert more.executor.stopped == 1
    late = FakeEngine()
    with pytest.raises(EngineDead, match="the engine is closed"):
        groups.set.add(late.core)
    assert late.executor.stopped == 1


def test_a_group_more_drains_with_the_others(make_groups: Callable[..., Groups]) -> None:
    groups = make_groups()
    for one in groups.engines:
        one.core.life.draining = True
    more = FakeEngine().core
    assert groups.set.grow(lambda index, lender: more) == 2
    assert more.life.draining


def test_a_collector_reads_from_all_groups(make_groups: Callable[..., Groups]) -> None:
    groups = make_groups(2)
    collector = Collector(only_ends=True)
    groups.set.add_requests([(ask(f"r{i}", max_tokens=4), collector) for i in range(6)])
    outputs: list[RequestOutput] = []
    while len(outputs) < 6:
        outputs += collector.wait(groups.set)
    assert sorted(output.request_id for output in outputs) == [f"r{i}" for i in range(6)]
