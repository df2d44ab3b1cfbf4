"""A wrapped executor: which calls meet faults, and what the log says."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import psutil
import pytest
from msgspec import msgpack

from enginebay.errors import ConfigError
from enginebay.interfaces import (
    Executor,
    ExecutorContext,
    ExecutorHealth,
    NoOptions,
    StartResult,
    StartSpec,
)
from enginebay.messages import (
    Ack,
    CallExtension,
    CompileOrWarmUpModel,
    Envelope,
    ExecuteModel,
    RankPlace,
    RankReply,
    Replies,
    SchedulerOutput,
    WorkerInfo,
    WorldPlan,
)
from enginebay.testing.faults import FaultOptions
from enginebay.testing.faults.executor import FaultyExecutor
from enginebay.testing.faults.in_worker import Order
from enginebay.transport import decode_call, encode, unwrap
from support.clock import FakeClock, fake_runtime
from support.served import eventually

STEP = ExecuteModel(scheduler_output=SchedulerOutput(step=0, generation=0, num_scheduled_tokens={}))


class Inner(Executor[NoOptions]):
    """Answers every call at once, unless it is to ``hold`` the answers; keeps what it was asked."""

    def __init__(self, context: ExecutorContext[NoOptions], pids: tuple[int, ...] = (1,)) -> None:
        super().__init__(context)
        self.pids = pids
        self.calls: list[Any] = []
        self.stopped = 0

    def start(self, spec: StartSpec) -> StartResult:
        here = {"incarnation": "i", "host": socket.gethostname()}
        return StartResult(
            workers=tuple(WorkerInfo(rank=r, local_rank=r, pid=pid, **here) for r, pid in enumerate(self.pids))
        )

    def submit(self, envelope: Envelope) -> Future[Replies]:
        self.calls.append(decode_call(envelope.payload))
        ranks = range(len(self.pids)) if envelope.ranks is None else envelope.ranks
        future: Future[Replies] = Future()
        replies = tuple(RankReply(rank=rank, payload=encode(Ack())) for rank in ranks)
        future.set_result(Replies(generation=envelope.generation, call_id=envelope.call_id, replies=replies))
        return future

    def health(self) -> ExecutorHealth:
        return ExecutorHealth(alive=True, detail="the inner one's")

    def stacks(self, deadline: float) -> dict[int, str]:
        return {0: "the inner one's"}

    def exchange(self, name: str, value: bytes, deadline: float) -> tuple[bytes, ...]:
        return (value, b"the inner one's")

    def stop(self, deadline: float) -> None:
        self.stopped += 1


class Wrapped:
    """A wrapped ``Inner`` under a clock that jumps to whatever is waited for."""

    def __init__(self, pids: tuple[int, ...] = (1,), **options: Any) -> None:
        self.clock, ids = FakeClock(), iter(range(1, 1000))
        context = ExecutorContext(
            options=NoOptions(),
            runtime=fake_runtime(self.clock),
            encode=encode,
            unwrap=unwrap,
            next_call_id=lambda: next(ids),
            generation=lambda: 0,
        )
        self.inner = Inner(context, pids)
        self.executor = FaultyExecutor(self.inner, FaultOptions.model_validate(options))

    def start(self, replica: int = 0) -> None:
        ranks = tuple(RankPlace(rank=rank, local_rank=rank) for rank in range(len(self.inner.pids)))
        world = WorldPlan(ranks=ranks, data_parallel_index=replica)
        self.executor.start(StartSpec(generation=0, world=world, payloads=(), incarnations=(), deadline=1e9))

    def step(self, ranks: tuple[int, ...] | None = None) -> Future[Replies]:
        return self.executor.submit_call(STEP, ranks=ranks).future


@pytest.fixture
def victim() -> Iterator[psutil.Popen]:
    """A process that stands for a worker."""
    process = psutil.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    yield process
    if process.poll() is None:
        process.kill()
    process.wait(60)


def script(*faults: dict[str, Any]) -> dict[str, Any]:
    return {"script": faults}


def test_the_nth_step_fails_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    wrapped = Wrapped((1, 2), **script({"kind": "fail", "rank": 1, "after_calls": 2}))
    wrapped.start()
    wrapped.executor.collective_rpc(CompileOrWarmUpModel())  # not counted
    with caplog.at_level(logging.WARNING, "enginebay.faults"):
        failures = [[one.failure for one in wrapped.step().result().replies] for _ in range(3)]
    assert [[failure is None for failure in each] for each in failures] == [[True, True], [True, False], [True, True]]
    assert caplog.messages == ["fault 1 of replica 0: fail rank 1 (execute_model)"]


def test_every_call_counts_if_that_is_asked() -> None:
    wrapped = Wrapped(call="any", **script({"kind": "fail", "after_calls": 2}))
    wrapped.start()
    wrapped.executor.collective_rpc(CompileOrWarmUpModel())
    (reply,) = wrapped.step().result().replies
    assert reply.failure is not None


def test_a_delayed_answer_comes_after_its_time() -> None:
    wrapped = Wrapped(**script({"kind": "delay_reply", "after_calls": 1, "seconds": 7.5}))
    wrapped.start()
    future = wrapped.step()
    assert future.result(60).replies[0].payload == encode(Ack())
    assert wrapped.clock.time >= 107.5


def test_a_dropped_answer_is_told_of_when_the_executor_is_stopped() -> None:
    wrapped = Wrapped(**script({"kind": "drop_reply", "after_calls": 1}))
    wrapped.start()
    future = wrapped.step()
    assert wrapped.step().done()
    assert not future.done()
    wrapped.executor.stop(0.0)
    assert wrapped.inner.stopped == 1
    (reply,) = future.result().replies
    assert reply.failure is not None
    assert reply.failure.kind == "EngineDead"


def test_faults_inside_a_worker_are_asked_for_before_their_step(caplog: pytest.LogCaptureFixture) -> None:
    wrapped = Wrapped((1, 2), **script({"kind": "slow", "rank": 1, "after_calls": 1, "seconds": 0.25}))
    wrapped.start()
    wrapped.step()
    order, step = wrapped.inner.calls
    assert isinstance(order, CallExtension)
    assert order.method == "faults.slow"
    assert msgpack.decode(order.payload, type=Order) == Order(seconds=0.25, bytes=64 << 20)
    assert isinstance(step, ExecuteModel)
    assert caplog.messages == ["fault 1 of replica 0: slow rank 1 (0.25 s each step)"]


def test_a_process_is_killed_with_its_call(victim: psutil.Popen, caplog: pytest.LogCaptureFixture) -> None:
    wrapped = Wrapped((victim.pid,), **script({"kind": "kill", "after_calls": 2}, {"kind": "kill", "after_calls": 3}))
    wrapped.start()
    wrapped.step()
    assert victim.poll() is None
    wrapped.step()
    assert victim.wait(60) == -9
    wrapped.step()
    assert caplog.messages == [
        "fault 1 of replica 0: kill rank 0",
        "no fault of replica 0: kill rank 0: there is no such process now: nothing was done",
    ]


def test_a_process_is_stopped_by_time_and_goes_on(victim: psutil.Popen, caplog: pytest.LogCaptureFixture) -> None:
    wrapped = Wrapped((victim.pid,), **script({"kind": "stop", "after_seconds": 3.0, "seconds": 2.0}))
    wrapped.start()
    wrapped.step()
    eventually(lambda: wrapped.clock.time >= 105.0)
    eventually(lambda: victim.status() != psutil.STATUS_STOPPED)
    assert caplog.messages == ["fault 1 of replica 0: stop rank 0 (for 2 s)"]


def test_a_stop_of_no_length_is_for_good(victim: psutil.Popen, caplog: pytest.LogCaptureFixture) -> None:
    wrapped = Wrapped((victim.pid,), **script({"kind": "stop", "after_calls": 1, "seconds": 0}))
    wrapped.start()
    wrapped.step()
    eventually(lambda: victim.status() == psutil.STATUS_STOPPED)
    wrapped.executor.stop(0.0)
    assert victim.status() == psutil.STATUS_STOPPED
    assert caplog.messages == ["fault 1 of replica 0: stop rank 0 (for good)"]


def test_a_fault_by_time_waits_for_workers_and_comes_once_over_all_starts(
    victim: psutil.Popen, caplog: pytest.LogCaptureFixture
) -> None:
    wrapped = Wrapped((victim.pid,), **script({"kind": "stop", "after_seconds": 9.0, "seconds": 0}))
    wrapped.start()
    wrapped.clock.time += 99.0
    assert caplog.messages == []  # its time has not begun
    wrapped.executor.stop(0.0)
    wrapped.step()
    wrapped.clock.time += 99.0
    assert caplog.messages == []  # there is nobody
    wrapped.start()
    eventually(lambda: victim.status() == psutil.STATUS_STOPPED)
    victim.resume()
    wrapped.executor.stop(0.0)
    wrapped.start()
    assert caplog.messages == ["fault 1 of replica 0: stop rank 0 (for good)"]


def test_an_executor_that_is_dropped_leaves_no_thread_and_no_descriptor(victim: psutil.Popen) -> None:
    before = psutil.Process().num_fds()
    wrapped = Wrapped((victim.pid,), random={"seed": 1, "rate": 0.001, "kinds": ["stop"], "limit": 1})
    wrapped.executor.start(StartSpec(generation=0, world=WorldPlan(), payloads=(), incarnations=(), deadline=1e9))
    del wrapped
    eventually(lambda: psutil.Process().num_fds() <= before)


def test_another_replicas_faults_are_left_to_it() -> None:
    wrapped = Wrapped(**script({"kind": "fail", "replica": 1, "after_calls": 1}))
    wrapped.start(replica=1)
    assert wrapped.step().result().replies[0].failure is not None
    wrapped = Wrapped(**script({"kind": "fail", "replica": 1, "after_calls": 1}))
    wrapped.start(replica=0)
    assert wrapped.step().result().replies[0].failure is None


def test_workers_that_cannot_be_harmed_end_the_start() -> None:
    wrapped = Wrapped((os.getpid(),), **script({"kind": "kill", "after_calls": 1}))
    with pytest.raises(ConfigError, match=r"rank 0 runs in the engine's process: take the kinds kill, stop"):
        wrapped.start()
    wrapped = Wrapped((os.getpid(),), **script({"kind": "fail", "after_calls": 1}))
    wrapped.start()


def test_all_else_is_the_inner_ones() -> None:
    wrapped = Wrapped(**script({"kind": "fail", "after_calls": 100}))
    executor = wrapped.executor
    assert executor.health().detail == "the inner one's"
    assert executor.stacks(0.0) == {0: "the inner one's"}
    assert executor.exchange("n", b"v", 0.0) == (b"v", b"the inner one's")
    envelope = Envelope(generation=0, call_id=1, payload=encode(STEP))
    assert executor.submit(envelope).done()
