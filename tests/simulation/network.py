"""The fake executor, transport and spawner: calls reach a worker in order, replies come as the plan's faults say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from msgspec.structs import replace

from enginebay.interfaces import Executor, ExecutorContext, ExecutorHealth, NoOptions, StartResult, StartSpec
from enginebay.messages import (
    Envelope,
    ExecuteModel,
    ModelRunnerOutput,
    RankReply,
    Replies,
    SampleTokens,
    SchedulerOutput,
    StepResult,
    WorkerFailure,
)
from enginebay.runtime import Channel, Process, Spawner, Thread, Transport
from enginebay.transport import decode_call, encode, raise_failures, unwrap
from simulation.clock import SimClock, SimFuture
from simulation.plan import VOCAB, Fault
from simulation.workers import FakeWorker, Violation

__all__ = ["BYTES", "OBJECTS", "NoTransport", "Pending", "SimExecutor", "SimSpawner", "Wire", "call_seconds"]

OUTPUT_RANK = 0

LATE = 5.0
"""A reply that takes so many seconds longer may be given up as lost."""

_FOREIGN = ("old_generation", "other_call", "other_step")
"""Faults whose replies say that they are the answer to something else, and hold other tokens."""


def call_seconds(number: int) -> float:
    """How long a worker takes for the call of that number."""
    return 0.25 + (number * 7 % 5) * 0.125


class Wire(NamedTuple):
    """How calls and answers cross. ``encode`` and ``unwrap`` are the executor context's."""

    encode: Callable[[Any], Any]
    decode_call: Callable[[Any], Any]
    unwrap: Callable[[Replies], list[object]]


def _as_they_are(replies: Replies) -> list[object]:
    results: list[object] = [reply.failure or reply.payload for reply in replies.replies]
    raise_failures(results)
    return results


BYTES = Wire(encode, decode_call, unwrap)
"""The real codec."""

OBJECTS = Wire(lambda message: message, lambda message: message, _as_they_are)
"""No codec: messages cross as they are. They are frozen, and it saves a twelfth of a schedule's time."""


class NoTransport(Transport):
    """The core has no lines of its own; whoever asks for one is a finding."""

    def pair(self, name: str) -> tuple[Channel, Channel]:
        raise Violation(f"the core asked for a line {name!r}")


class SimSpawner(Spawner):
    """Starts and kills fake workers: one live one on the device at any time."""

    def __init__(self, make: Callable[[int], FakeWorker]) -> None:
        self._make = make
        self.num_started = 0
        self.worker: FakeWorker | None = None

    def start(self) -> FakeWorker:
        """A new worker on the device."""
        if self.worker is not None and self.worker.alive:
            raise Violation("a second live worker on one device")
        self.num_started += 1
        self.worker = self._make(self.num_started)
        return self.worker

    def kill(self) -> FakeWorker | None:
        """End the device's worker; returns it if it was alive."""
        worker = self.worker
        if worker is None or not worker.alive:
            return None
        worker.alive = False
        return worker

    def process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
    ) -> Process:
        raise Violation(f"the core started a process: {argv}")

    def thread(self, name: str, target: Callable[[], None]) -> Thread:
        raise Violation(f"the core started a thread {name!r}")


class Pending:
    """A call that was sent and not answered. ``writes`` are the blocks that it may write."""

    __slots__ = ("call", "envelope", "fault", "future", "number", "worker", "writes")

    def __init__(
        self,
        number: int,
        envelope: Envelope,
        call: ExecuteModel | SampleTokens,
        worker: FakeWorker,
        fault: Fault | None,
    ) -> None:
        self.number = number
        self.envelope = envelope
        self.call = call
        self.worker = worker
        self.fault = fault
        self.writes: dict[int, Any] = {}
        self.future: SimFuture[Replies] = SimFuture()


class SimExecutor(Executor[NoOptions]):
    """One worker behind a line that is as bad as the plan says. ``log`` is told of every event.

    ``tick`` is called between any two events, ``poisoned`` when the worker dies of one of the requests in ``poison``,
    ``on_send`` with each schedule before it is sent. Calls and answers cross by ``wire``.
    """

    def __init__(
        self,
        context: ExecutorContext[NoOptions],
        clock: SimClock,
        spawner: SimSpawner,
        faults: dict[int, Fault],
        *,
        wire: Wire,
        tick: Callable[[], None],
        poison: frozenset[str],
        poisoned: Callable[[], None],
        on_send: Callable[[SchedulerOutput, Pending], None],
        log: Callable[[tuple[object, ...]], None],
    ) -> None:
        super().__init__(context)
        self._clock = clock
        self._spawner = spawner
        self._faults = faults
        self._wire = wire
        self._tick = tick
        self._poison, self._poisoned = poison, poisoned
        self._on_send = on_send
        self._log = log
        self._pending: dict[int, Pending] = {}
        self._repeated: Replies | None = None
        self._swapped: tuple[Pending, Replies] | None = None
        self._step = -1
        self.num_calls = 0
        self.num_struck = 0
        self.num_silenced = 0
        self.faulty: set[str] = set()

    def start(self, spec: StartSpec) -> StartResult:
        raise Violation("workers are started by the world")

    def health(self) -> ExecutorHealth:
        return ExecutorHealth(alive=True)

    def stop(self, deadline: float) -> None:
        self._spawner.kill()

    @property
    def pending(self) -> Iterable[Pending]:
        """The calls that have no answer yet, oldest first."""
        return self._pending.values()

    def submit(self, envelope: Envelope) -> Future[Replies]:
        self._tick()
        number = self.num_calls
        self.num_calls += 1
        worker = self._spawner.worker
        assert worker is not None
        call = self._wire.decode_call(envelope.payload)
        assert isinstance(call, (ExecuteModel, SampleTokens))
        pending = Pending(number, envelope, call, worker, self._faults.get(number))
        if isinstance(call, ExecuteModel):
            self._on_send(call.scheduler_output, pending)
        self._pending[number] = pending
        self._log(("send", number, envelope.generation, envelope.payload))
        clock = self._clock
        worker.busy_until = max(clock.time, worker.busy_until) + call_seconds(number)
        clock.at(worker.busy_until, lambda: self._work(pending))
        if self._repeated is not None:
            again, self._repeated = self._repeated, None
            clock.at(clock.time + 0.1, lambda: self._deliver(pending, again))
        return pending.future

    def _work(self, pending: Pending) -> None:
        self._tick()
        worker, fault = pending.worker, pending.fault
        if worker.alive and self._poison and isinstance(pending.call, ExecuteModel):
            clients = {one.partition("#")[0] for one in pending.call.scheduler_output.num_scheduled_tokens}
            if clients & self._poison:
                self._poisoned()
        if not worker.alive:
            return
        kind = "" if fault is None else fault.kind
        reply = self._reply(pending, worker, kind)
        envelope = pending.envelope
        generation = envelope.generation - (kind == "old_generation")
        call_id = envelope.call_id - (kind == "other_call")
        replies = Replies(generation=generation, call_id=call_id, replies=(reply,))
        self._tick()
        if fault is None or not worker.alive:
            self._arrive(pending, replies)
        elif kind == "late":
            self.num_struck += 1
            self.num_silenced += fault.delay > LATE
            self._clock.at(self._clock.time + fault.delay, lambda: self._arrive(pending, replies))
        elif kind == "lose":
            self.num_struck += 1
            self.num_silenced += 1
        else:
            if kind == "repeat":
                self.num_struck += 1
                self._repeated = replies
            elif kind == "swap" and self._swapped is None and self._next_to(pending):
                self.num_struck += 1
                self._swapped = pending, replies
                return
            self._arrive(pending, replies)

    def _reply(self, pending: Pending, worker: FakeWorker, kind: str) -> RankReply:
        call = pending.call
        if kind == "fail":
            self.num_struck += 1
            return self._failed(pending, "a kernel failed")
        try:
            if isinstance(call, SampleTokens):
                output: ModelRunnerOutput | None = worker.sample(call.grammar_output)
            else:
                output = self._execute(call.scheduler_output, worker, kind)
                self._step = call.scheduler_output.step
        except (ValueError, IndexError, Violation) as error:
            if worker.failed_generation != pending.envelope.generation:
                raise
            return self._failed(pending, str(error))  # told as a worker does; the core has to void it in any case
        if kind == "fail_half":
            self.num_struck += 1
            return self._failed(pending, "a kernel failed")
        step = self._step
        if kind in _FOREIGN:
            self.num_struck += 1
            step += kind == "other_step"
            output = _other_tokens(output)
        return RankReply(rank=OUTPUT_RANK, payload=self._wire.encode(StepResult(output=output, step=step)))

    def _execute(self, schedule: SchedulerOutput, worker: FakeWorker, kind: str) -> ModelRunnerOutput | None:
        if kind in ("mute", "faulty") and schedule.num_scheduled_tokens:
            self.num_struck += 1
            worker.failed_generation = schedule.generation
            chosen = next(iter(schedule.num_scheduled_tokens))
            if kind == "mute":
                return worker.execute(schedule, mute=chosen)
            self.faulty.add(chosen)
            return worker.execute(schedule, faulty=chosen)
        return worker.execute(schedule)

    def _next_to(self, pending: Pending) -> bool:
        """Whether another call is on its way, whose answer can come in this one's place."""
        return any(other is not pending and other.worker is pending.worker for other in self._pending.values())

    def _arrive(self, pending: Pending, replies: Replies) -> None:
        if self._swapped is not None:
            (other, others), self._swapped = self._swapped, None
            self._deliver(other, replies)
            replies = others
        self._deliver(pending, replies)

    def _deliver(self, pending: Pending, replies: Replies) -> None:
        self._pending.pop(pending.number, None)
        if not pending.future.done():
            self._log(("reply", pending.number, self._clock.time, replies.call_id, replies.replies[0].payload))
            pending.future.set_result(replies)

    def _failed(self, pending: Pending, message: str) -> RankReply:
        pending.worker.failed_generation = pending.envelope.generation
        failure = WorkerFailure(phase="execute_model", error_type="RuntimeError", message=message)
        return RankReply(rank=OUTPUT_RANK, failure=failure)


def _other_tokens(output: ModelRunnerOutput | None) -> ModelRunnerOutput | None:
    if output is None:
        return None
    drawn = tuple([tuple([(token + 1) % VOCAB for token in row]) for row in output.sampled_token_ids])
    return replace(output, sampled_token_ids=drawn)
