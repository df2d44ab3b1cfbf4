"""The engine's thread: the bell only wakes it, and what it does stands in the inbox."""

from __future__ import annotations

import time

import pytest

from enginebay.engine.admission.admit import Ask
from enginebay.engine.client import InProcessClient
from enginebay.engine.collector import Collector
from enginebay.engine.loop import Abort, Add, AddMany, EngineLoop
from enginebay.errors import DuplicateRequest, EnginebayError
from enginebay.messages import FinishReason, RequestOutput, SamplingParams, SchedulerOutput
from support.fake_engine import FakeEngine


class Sink:
    def __init__(self) -> None:
        self.outputs: list[RequestOutput] = []
        self.errors: list[EnginebayError] = []

    def put(self, output: RequestOutput) -> None:
        self.outputs.append(output)

    def fail(self, error: EnginebayError) -> None:
        self.errors.append(error)


def add(request_id: str, sink: Sink, max_tokens: int = 3) -> Add:
    params = SamplingParams(max_tokens=max_tokens)
    return Add(ask=Ask(request_id=request_id, prompt_token_ids=(1,), params=params), sink=sink, operation="x")


def test_a_command_without_a_ring_is_handled() -> None:
    loop, sink = EngineLoop(FakeEngine().core), Sink()
    begun = time.monotonic()
    loop._inbox.append(add("a", sink))  # the sender was interrupted before it rang
    for _ in range(3):
        loop.turn()
    loop._inbox.append(Abort(request_id="gone", sink=sink))
    loop.send(add("b", sink))
    for _ in range(3):
        loop.turn()
    assert [output.request_id for output in sink.outputs if output.finish_reason is not None] == ["a", "b"]
    assert not sink.errors
    assert time.monotonic() - begun < 4


def test_an_abort_ends_the_request_of_its_sink_alone() -> None:
    loop, old, new = EngineLoop(FakeEngine().core), Sink(), Sink()
    loop.send(add("a", old))
    for _ in range(3):
        loop.turn()
    assert old.outputs[-1].finish_reason is FinishReason.LENGTH
    loop.send(add("a", new))
    loop.send(Abort(request_id="a", sink=old))  # sent late: the id is another's by now
    loop.turn()
    assert [output.finish_reason for output in new.outputs] == [None]
    loop.send(Abort(request_id="a", sink=new))
    loop.turn()
    assert new.outputs[-1].finish_reason is FinishReason.ABORT


def test_the_end_of_an_aborted_request_is_its_own_reader_s() -> None:
    loop, old, new = EngineLoop(FakeEngine().core), Sink(), Sink()
    loop.send(add("a", old, max_tokens=20))
    for _ in range(3):
        loop.turn()
    loop.send(Abort(request_id="a", sink=old))
    loop.send(add("a", new))  # before a step that would hand out the end
    for _ in range(4):
        loop.turn()
    assert old.outputs[-1].finish_reason is FinishReason.ABORT
    assert [output.finish_reason for output in new.outputs] == [None, None, FinishReason.LENGTH]


def test_no_step_sees_half_of_a_batch() -> None:
    """All of it comes between the same two steps, also when it comes while one runs."""
    engine, sink = FakeEngine(), Sink()
    loop = EngineLoop(engine.core)
    loop.send(add("first", sink, max_tokens=6))

    def arrive(output: SchedulerOutput) -> None:
        if output.step == 1:
            loop.send(AddMany(adds=tuple(add(f"b{index}", sink) for index in range(5))))

    engine.executor.before = arrive
    while len([one for one in sink.outputs if one.finish_reason]) < 6:
        loop.turn()
    began = [[new.request_id for new in step.new] for step in engine.executor.steps if step.new]
    assert began == [["first"], ["b0", "b1", "b2", "b3", "b4"]]


def test_one_of_a_batch_that_is_refused_fails_alone() -> None:
    loop, sink, other = EngineLoop(FakeEngine().core), Sink(), Sink()
    loop.send(AddMany(adds=(add("a", sink), add("a", other), add("b", sink))))
    for _ in range(4):
        loop.turn()
    assert [output.request_id for output in sink.outputs if output.finish_reason is not None] == ["a", "b"]
    assert [type(error) for error in other.errors] == [DuplicateRequest]
    assert not other.outputs


def test_rings_without_a_command_do_nothing() -> None:
    loop, sink = EngineLoop(FakeEngine().core), Sink()
    for _ in range(5):
        loop._bell.send(b"")
    loop.turn()  # takes one, and finds nothing
    loop.send(add("a", sink))
    for _ in range(3):
        loop.turn()
    assert sink.outputs[-1].finish_reason is FinishReason.LENGTH
    begun = time.monotonic()
    loop._bell.send(b"")
    loop.turn()
    assert time.monotonic() - begun < 4


def test_an_interrupt_between_the_inbox_and_the_bell_harms_nobody() -> None:
    """Ctrl-C in the client's ``add_request``: the engine goes on, and the request is ended."""
    engine = FakeEngine()
    client = InProcessClient(engine.core, stop_timeout=5.0)
    client.start()
    bell, send = client._loop._bell, client._loop._bell.send
    rings = iter([True])

    def interrupted(frame: bytes) -> None:
        if next(rings, False):
            raise KeyboardInterrupt
        send(frame)

    bell.send = interrupted  # type: ignore[method-assign]  # Ctrl-C in the middle of it
    sink = Sink()
    ask = Ask(request_id="a", prompt_token_ids=(1,), params=SamplingParams(max_tokens=100))
    with pytest.raises(KeyboardInterrupt):
        client.add_request(ask, sink)
    collector = Collector()
    other = Ask(request_id="b", prompt_token_ids=(1,), params=SamplingParams(max_tokens=2))
    client.add_request(other, collector)
    while not any(output.finish_reason for output in collector.wait(client)):
        assert client._loop.is_alive()
    deadline = time.monotonic() + 10
    while client.stats().unfinished:
        assert time.monotonic() < deadline
    assert engine.core.death() is None
    assert sink.outputs[-1].finish_reason is FinishReason.ABORT
    client.add_request(ask, collector)  # its id is free again
    client.stop()
