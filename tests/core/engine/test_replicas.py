"""Several groups behind one front end: one's death, hang or refusal is no other's, and all end by one deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from enginebay.engine.admission.admit import Ask
from enginebay.engine.client import InProcessClient
from enginebay.engine.collector import Collector
from enginebay.engine.control.tensors import AbortTensors, Command, FinishTensors, StartTensors
from enginebay.engine.replicas.gathering import ControlInTurn, end_of_all, for_each_group, merged, summed
from enginebay.engine.replicas.replicas import ReplicaSet
from enginebay.engine.replicas.unison import Unison
from enginebay.errors import (
    DuplicateRequest,
    EngineAsleep,
    EnginebayError,
    EngineBusy,
    EngineDead,
    InvalidRequest,
    RequestTooLong,
    UnknownRequest,
    WorkerFailed,
    WorkerLost,
)
from enginebay.messages import (
    CallWorkers,
    ControlDone,
    Drain,
    FinishReason,
    ReadStatus,
    RequestOutput,
    Resume,
    SamplingParams,
    Sleep,
    StopProfile,
    UpdateWeights,
    WakeUp,
)
from enginebay.runtime import system_runtime
from support.fake_engine import FakeEngine, text_token

PATIENCE = 20.0


def until(true: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.002)


def ask(request_id: str, prompt: str = "hi", max_tokens: int = 3, **params: Any) -> Ask:
    sampling = SamplingParams(max_tokens=max_tokens, **params)
    return Ask(request_id=request_id, prompt_token_ids=tuple(prompt.encode()), params=sampling)


class Sink:
    """Keeps what it gets, and says when it has ended."""

    def __init__(self) -> None:
        self.outputs: list[RequestOutput] = []
        self.errors: list[EnginebayError] = []
        self.thread = 0

    def put(self, output: RequestOutput) -> None:
        self.thread = threading.get_ident()
        self.outputs.append(output)

    def fail(self, error: EnginebayError) -> None:
        self.thread = threading.get_ident()
        self.errors.append(error)

    def ended(self) -> bool:
        return bool(self.errors) or any(output.finish_reason is not None for output in self.outputs)

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]


class Groups:
    """A set over fake engines. ``hold(i)`` lets no step of group i end until ``release(i)``."""

    def __init__(self, count: int = 2, *, stop_timeout: float = 5.0, **engine: Any) -> None:
        self.engines = [FakeEngine(**engine) for _ in range(count)]
        self.gates = [threading.Event() for _ in range(count)]
        self.held = [threading.Event() for _ in range(count)]
        self.ends: list[float] = []
        for gate in self.gates:
            gate.set()
        for index, one in enumerate(self.engines):
            one.executor.before = self._before(index)
        self.set = ReplicaSet(
            [one.core for one in self.engines],
            stop_timeout=stop_timeout,
            on_end=lambda: self.ends.append(time.monotonic()),
        )
        self.set.start()

    def _before(self, index: int) -> Callable[[Any], None]:
        def wait(_: Any) -> None:
            if not self.gates[index].is_set():
                self.held[index].set()
            assert self.gates[index].wait(PATIENCE)

        return wait

    def hold(self, index: int) -> None:
        self.gates[index].clear()

    def kill(self, index: int, why: str = "rank 0: the worker ended (signal 9)") -> None:
        """The group's next step is its last, of a lost worker."""

        def lost(_: Any) -> None:
            raise AssertionError("never reached")

        def die() -> None:
            raise WorkerLost(why)

        self.engines[index].executor.before = lost
        self.engines[index].core._execution.check_alive = die  # type: ignore[method-assign]  # the fault under test

    def close(self) -> None:
        for gate in self.gates:
            gate.set()
        self.set.stop()


@pytest.fixture
def make() -> Iterator[Callable[..., Groups]]:
    made: list[Groups] = []

    def make(*args: Any, **rest: Any) -> Groups:
        made.append(Groups(*args, **rest))
        return made[-1]

    yield make
    for groups in made:
        groups.close()


def run(groups: Groups, *asks: Ask) -> list[Sink]:
    """Sinks of the requests, each ended."""
    sinks = []
    for one in asks:
        sinks.append(Sink())
        groups.set.add_request(one, sinks[-1])
    until(lambda: all(sink.ended() for sink in sinks))
    return sinks


def test_requests_are_shared_out_and_answered_as_one_group_does(make: Callable[..., Groups]) -> None:
    groups = make(2)
    sinks = run(groups, *(ask(f"r{i}", f"prompt {i}", 5) for i in range(8)))
    for i, sink in enumerate(sinks):
        assert sink.tokens == [text_token(f"prompt {i}".encode(), n) for n in range(5)]
    assert [one.core.stats().finished for one in groups.engines] == [4, 4]
    assert groups.set.loads == (0, 0)
    stats = groups.set.stats()
    assert (stats.finished, stats.unfinished, stats.committed_tokens) == (8, 0, 40)
    assert stats.scheduler.num_blocks == stats.scheduler.num_free_blocks == 128


def test_all_choices_of_a_request_stay_in_one_group(make: Callable[..., Groups]) -> None:
    groups = make(2, features=frozenset({"n"}))
    sink = Sink()
    groups.set.add_request(ask("many", "say:choice %", 20, n=3, temperature=1.0), sink)
    until(lambda: sum(output.finish_reason is not None for output in sink.outputs) == 3)
    assert sorted(one.core.stats().finished for one in groups.engines) == [0, 3]
    assert groups.set.loads == (0, 0)


def test_a_group_that_hangs_holds_up_no_other(make: Callable[..., Groups]) -> None:
    groups = make(2)
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


def test_the_death_of_a_group_is_its_requests_own(make: Callable[..., Groups]) -> None:
    groups = make(2)
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
    assert [type(error) for error in first.errors] == [WorkerLost]
    assert str(first.errors[0]) == "the engine stopped: rank 0: the worker ended (signal 9)"
    assert len(second.tokens) == 30
    sinks = run(groups, *(ask(f"later{i}") for i in range(4)))
    assert all(len(sink.tokens) == 3 for sink in sinks)
    assert groups.set.loads == (None, 0)
    groups.set.check_alive()
    assert groups.set.stats().finished >= 5  # a dead group says how it stood last


def test_the_engine_is_dead_when_its_last_group_is(make: Callable[..., Groups]) -> None:
    groups = make(2)
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


def test_a_request_finds_a_group_whose_end_was_not_seen_yet(make: Callable[..., Groups]) -> None:
    """It ends between the choice and the sending: the request goes elsewhere, and nobody notices."""
    groups = make(2)
    client = groups.set._clients[0]
    looked = groups.set._look
    groups.set._look = lambda: (looked(), client.stop())[0]  # type: ignore[func-returns-value, method-assign]  # the moment
    sink = Sink()
    groups.set.add_request(ask("a"), sink)
    groups.set._look = looked  # type: ignore[method-assign]  # as it was
    until(sink.ended)
    assert len(sink.tokens) == 3
    assert groups.engines[1].core.stats().finished == 1


def test_several_are_taken_together_or_not_at_all(make: Callable[..., Groups]) -> None:
    groups = make(2)
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


def test_an_interrupted_sending_frees_the_ids(make: Callable[..., Groups], monkeypatch: pytest.MonkeyPatch) -> None:
    groups = make(2)
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


def test_an_abort_reaches_the_group_of_its_request(make: Callable[..., Groups]) -> None:
    groups = make(3)
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


def test_a_request_must_fit_into_every_group(make: Callable[..., Groups]) -> None:
    large, small = FakeEngine(max_model_len=128), FakeEngine(max_model_len=32)
    replicas = ReplicaSet([large.core, small.core], stop_timeout=5.0)
    replicas.start()
    try:
        with pytest.raises(RequestTooLong):
            replicas.validate(ask("a", "x" * 40))
        replicas.validate(ask("a", "x" * 20))
    finally:
        replicas.stop()


def test_a_group_more_takes_requests_at_once(make: Callable[..., Groups]) -> None:
    groups = make(1)
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


def test_all_end_by_one_deadline_and_the_end_is_told_once(make: Callable[..., Groups]) -> None:  # X13
    groups = make(4, stop_timeout=0.3)
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


def test_a_collector_reads_from_all_groups(make: Callable[..., Groups]) -> None:
    groups = make(2)
    collector = Collector(only_ends=True)
    groups.set.add_requests([(ask(f"r{i}", max_tokens=4), collector) for i in range(6)])
    outputs: list[RequestOutput] = []
    while len(outputs) < 6:
        outputs += collector.wait(groups.set)
    assert sorted(output.request_id for output in outputs) == [f"r{i}" for i in range(6)]


def test_what_groups_say_is_put_together() -> None:
    assert merged([{"a": "1", "b": "x"}, {"a": "1", "b": "y", "c": "z"}]) == {
        "a": "1",
        "b": "group 0: x; group 1: y",
        "c": "group 1: z",
    }
    one = FakeEngine().core.stats()
    assert summed([one, one]).scheduler.num_blocks == 2 * one.scheduler.num_blocks
    same = [EngineDead("the engine is closed"), EngineDead("the engine is closed")]
    assert str(end_of_all(same)) == "the engine is closed"


class Answers:
    """Futures that a test completes, as the groups' ``control``."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.futures: dict[int, Future[ControlDone]] = {}

    def send(self, index: int) -> Future[ControlDone]:
        self.asked.append(index)
        return self.futures.setdefault(index, Future())


def test_a_control_is_done_by_one_group_after_the_other() -> None:
    answers = Answers()
    done = ControlInTurn(system_runtime(), Sleep(level=1), [0, 2], answers.send)
    assert answers.asked == [0]
    answers.futures[0].set_result(ControlDone(values=(b"a",), facts={"freed": "1 GiB", "level": "1"}))
    assert answers.asked == [0, 1]
    assert not done.done()
    answers.futures[1].set_result(ControlDone(values=(b"b",), facts={"freed": "2 GiB", "level": "1"}))
    assert done.result(0) == ControlDone(
        values=(b"a", b"b"), facts={"freed": "group 0: 1 GiB; group 1: 2 GiB", "level": "1"}
    )


def test_a_refused_control_says_who_has_done_it_already() -> None:
    answers = Answers()
    done = ControlInTurn(system_runtime(), Sleep(level=1), [0, 2], answers.send)
    answers.futures[0].set_result(ControlDone())
    answers.futures[1].set_exception(InvalidRequest("requests run"))
    with pytest.raises(InvalidRequest, match=r"^group 2 did not sleep, which group 0 did already: requests run$"):
        done.result(0)
    first = Answers()
    done = ControlInTurn(system_runtime(), Sleep(level=1), [0, 1], first.send)
    first.futures[0].set_exception(InvalidRequest("requests run"))
    with pytest.raises(InvalidRequest, match=r"^requests run$"):
        done.result(0)
    assert first.asked == [0]


@pytest.mark.parametrize("error", [WorkerFailed("rank 0 failed", remote_traceback="there"), EngineBusy("requests run")])
def test_whatever_a_group_fails_with_it_is_told_who_has_done_it(error: EnginebayError) -> None:
    answers = Answers()
    done = ControlInTurn(system_runtime(), UpdateWeights(path="/new"), [0, 1], answers.send)
    answers.futures[0].set_result(ControlDone())
    answers.futures[1].set_exception(error)
    with pytest.raises(type(error)) as caught:
        done.result(0)
    assert str(caught.value) == f"group 1 did not update_weights, which group 0 did already: {error}"
    assert vars(caught.value) == vars(error)


@pytest.mark.parametrize("command", [AbortTensors(update=1), Resume(), StopProfile(), ReadStatus(), Drain()])
def test_what_undoes_or_asks_reaches_the_groups_behind_one_that_cannot(command: Command) -> None:
    answers = Answers()

    def send(index: int) -> Future[ControlDone]:
        if index == 0:
            raise EngineDead("it has ended")
        return answers.send(index)

    done = ControlInTurn(system_runtime(), command, [0, 1, 2], send)
    for index in (1, 2):
        answers.futures[index].set_result(ControlDone())
    with pytest.raises(EngineDead, match=r"^group 0 did not .*, which group 1, 2 did already: it has ended$"):
        done.result(0)


@pytest.mark.parametrize("command", [UpdateWeights(path="/new"), FinishTensors(update=1)])
def test_nothing_is_answered_by_groups_of_different_weights(command: Command) -> None:
    answers, unison = Answers(), Unison()
    done = unison.control(system_runtime(), command, [0, 1], answers.send)
    unison.check()
    answers.futures[0].set_result(ControlDone())
    answers.futures[1].set_exception(EngineBusy("requests run"))
    assert isinstance(done.exception(0), EngineBusy)
    with pytest.raises(EngineAsleep) as caught:
        unison.check()
    assert str(caught.value) == (
        f"the groups of the engine have different weights: {done.exception(0)}; update the weights, and ask again"
    )
    with pytest.raises(EngineAsleep), unison.growing():
        raise AssertionError("never reached")
    first = Answers()
    done = unison.control(system_runtime(), command, [0, 1], first.send)
    first.futures[0].set_exception(EngineBusy("requests run"))
    assert isinstance(done.exception(0), EngineBusy)
    with pytest.raises(EngineAsleep):  # nobody has done that one: it is as before
        unison.check()
    again = Answers()
    done = unison.control(system_runtime(), command, [0, 1], again.send)
    for index in (0, 1):
        again.futures[index].set_result(ControlDone())
    assert done.exception(0) is None
    unison.check()


def test_requests_are_refused_while_groups_differ(make: Callable[..., Groups]) -> None:
    groups = make()
    groups.set._unison._at_odds = "group 1 did not"
    sink = Sink()
    with pytest.raises(EngineAsleep, match="the groups of the engine have different weights: group 1 did not; "):
        groups.set.add_request(ask("a"), sink)
    assert groups.set.loads == (0, 0)
    assert groups.set.control(ReadStatus()).result(PATIENCE).facts["state"] == "groups of different weights"
    groups.set._unison._at_odds = ""
    groups.set.add_request(ask("a"), sink)
    until(sink.ended)
    assert groups.set.control(ReadStatus()).result(PATIENCE).facts["state"] == "ready"


def test_a_group_does_not_start_beside_a_change() -> None:
    answers, unison = Answers(), Unison()
    with unison.growing():
        for command in (Sleep(), WakeUp(), UpdateWeights(path="/new"), StartTensors(update=1)):
            with pytest.raises(EngineBusy, match="has to wait: another group is being started"):
                unison.control(system_runtime(), command, [0], answers.send)
        unison.control(system_runtime(), Drain(), [0], answers.send)
    unison.control(system_runtime(), Sleep(), [1], answers.send)
    answers = Answers()
    unison.control(system_runtime(), Sleep(), [0], answers.send)
    with pytest.raises(EngineBusy, match="no group is started while"), unison.growing():
        raise AssertionError("never reached")


def test_a_group_more_drains_with_the_others(make: Callable[..., Groups]) -> None:
    groups = make()
    for one in groups.engines:
        one.core.life.draining = True
    more = FakeEngine().core
    assert groups.set.grow(lambda index, lender: more) == 2
    assert more.life.draining


def test_what_only_asks_goes_to_all_at_once() -> None:
    answers = Answers()
    done = ControlInTurn(system_runtime(), ReadStatus(), [0, 1], answers.send)
    assert answers.asked == [0, 1]
    answers.futures[1].set_result(ControlDone(values=(b"b",)))
    answers.futures[0].set_result(ControlDone(values=(b"a",)))
    assert done.result(0).values == (b"a", b"b")


def test_payloads_rank_by_rank_are_dealt_out() -> None:
    call = CallWorkers(method="x.y", per_rank=(b"0", b"1", b"2", b"3"))
    dealt = for_each_group(call, [2, 2])
    assert [one.per_rank for one in dealt if isinstance(one, CallWorkers)] == [(b"0", b"1"), (b"2", b"3")]
    assert for_each_group(Sleep(), [2, 2]) == [Sleep(), Sleep()]
    with pytest.raises(InvalidRequest) as caught:
        for_each_group(CallWorkers(method="x.y", per_rank=(b"0", b"1")), [2, 2])
    assert str(caught.value) == ("per_rank has 2 payloads, and 2 groups have 4 ranks together: give one for each")
