"""Executors: where workers run, and how calls reach them. An executor carries bytes and knows no models.

The parent half subclasses ``Executor``; the worker half calls ``enginebay.worker.serve(payload, channel)`` in the
worker's process, with a ``WorkerChannel`` of yours. A first one, that runs its single worker in a thread::

    class ThreadExecutor(Executor[NoOptions]):
        def start(self, spec: StartSpec) -> StartResult: ...    # spawn, wait for HELLO from every rank
        def submit(self, envelope: Envelope) -> Future[Replies]: ...  # at once; FIFO per rank; thread-safe
        def health(self) -> ExecutorHealth: ...                 # never blocks
        def stop(self, deadline: float) -> None: ...            # idempotent, also after a failed start

What you get for it, and cannot override: ``collective_rpc``, ``execute_model``, ``sample_tokens``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar, final, runtime_checkable

from enginebay.interfaces._options import Options
from enginebay.interfaces._reclaim import Finding
from enginebay.messages import (
    Call,
    Envelope,
    ExecuteModel,
    GrammarOutput,
    Replies,
    SampleTokens,
    SchedulerOutput,
    WorkerInfo,
    WorldPlan,
)
from enginebay.runtime import Runtime

O = TypeVar("O", bound=Options)


def _no_run_folder() -> Path:
    raise NotImplementedError("whoever made this context has given the engine no folder of its own")


@dataclass(frozen=True, kw_only=True)
class WorkerExit:
    """A worker's process ended: the exit code or the signal, whichever is known, and its last log lines.

    ``reason`` says more where the executor knows more: "was killed (signal 9, SIGKILL), out of memory".
    """

    rank: int
    incarnation: str
    exit_code: int | None = None
    signal: int | None = None
    last_log_lines: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class StartSpec:
    """What to start: one payload (bytes, for ``serve``) per rank of the world, under this generation.

    Where ``world.own_ranks`` names ranks, the payloads and incarnations are for those, in that order.

    ``deadline`` is seconds of the monotonic clock, by which every rank has said HELLO.
    """

    generation: int
    world: WorldPlan
    payloads: tuple[bytes, ...]
    incarnations: tuple[str, ...]
    deadline: float
    traceparent: str = ""


@dataclass(frozen=True, kw_only=True)
class StartResult:
    """The workers that are connected, in rank order. They have loaded nothing yet."""

    workers: tuple[WorkerInfo, ...]


@dataclass(frozen=True, kw_only=True)
class PendingCall:
    """A call that was sent: only the answer with its id, which no other call has, is the answer to it."""

    call_id: int
    future: Future[Replies]


@dataclass(frozen=True, kw_only=True)
class RankHealth:
    """One worker by its last heartbeat: the phase that it said it enters ("execute_model", "idle"), the step where it
    is in one (else -1), the heartbeat's age in seconds, and the process's state ("running", "stopped", "gone", "").

    ``budget``: seconds that it asked for with that heartbeat (a compile, a first run), so that no deadline of a step
    ends it before; 0: none. ``ran`` and ``queued``: seconds in all that its main thread was on a processor, and that it
    was ready to run and had none, as the kernel counts them; -1: not known. Such waits do not count against it."""

    rank: int
    phase: str = ""
    step: int = -1
    age: float = 0.0
    state: str = ""
    budget: float = 0.0
    ran: float = -1.0
    queued: float = -1.0


@dataclass(frozen=True, kw_only=True)
class ExecutorHealth:
    """What the executor knows without asking anybody; ``ranks`` where it reads their heartbeats."""

    alive: bool
    lost_ranks: tuple[int, ...] = ()
    detail: str = ""
    ranks: tuple[RankHealth, ...] = ()


@runtime_checkable
class WorkerChannel(Protocol):
    """The worker's end of the line, written by the executor's author.

    ``receive`` returns the next encoded ``Envelope``, or None when the line is closed for good; it raises
    ``TimeoutError`` when ``deadline`` (monotonic seconds; None waits until closed) passes. ``reply`` sends an encoded
    ``Result`` back for (generation, call id). ``heartbeat`` says which phase the worker enters ("idle", "load_model",
    or "execute_model 41", with the step's number, and "+600" behind either where it asks for so many seconds: see
    ``enginebay.transport.beat``), ``closed`` whether the line is closed.
    """

    def receive(self, deadline: float | None) -> bytes | None: ...

    def reply(self, generation: int, call_id: int, payload: bytes) -> None: ...

    def heartbeat(self, phase: str) -> None: ...

    def closed(self) -> bool: ...


class RecordResource(Protocol):
    """``ExecutorContext.record_resource``."""

    def __call__(self, kind: str, name: str, probe: Callable[[], Finding] | None = None) -> None: ...


def _not_recorded(kind: str, name: str, probe: Callable[[], Finding] | None = None) -> None:
    """Where there is no manifest."""


@dataclass(frozen=True, kw_only=True)
class ExecutorContext(Generic[O]):
    """Everything an executor is given. Frozen; a later minor version may add fields.

    ``encode`` turns a call into bytes, ``unwrap`` turns replies into results and raises what a rank reported:
    together they keep the wire format out of the executor. ``worker_exited`` reports a death the moment it is seen, and
    before the calls that wait for that worker are failed: whoever is woken by them asks how it ended.
    ``record_resource(kind, name)`` writes a resource down before it is taken; a ``probe`` that it is given besides sees
    whether that is free again, and is asked after ``stop`` until it says so: in a thread that is waited for for two
    seconds. It is of the workers that the next ``stop`` ends. ``run_folder()`` is a folder of this engine alone (mode
    0700, made at the first call, removed when the engine has ended): for sockets and other names.
    """

    options: O
    runtime: Runtime
    encode: Callable[[Call], bytes]
    unwrap: Callable[[Replies], list[object]]
    next_call_id: Callable[[], int]
    generation: Callable[[], int]
    worker_exited: Callable[[WorkerExit], None] = field(default=lambda worker_exit: None)
    record_resource: RecordResource = field(default=_not_recorded)
    call_timeout: float = 300.0
    heartbeat_timeout: float = 5.0
    run_folder: Callable[[], Path] = field(default=_no_run_folder)


class Executor(ABC, Generic[O]):
    """One group's workers. Construction assigns; ``start`` does what can fail, and ``stop`` undoes it."""

    def __init__(self, context: ExecutorContext[O]) -> None:
        self.context = context

    @abstractmethod
    def start(self, spec: StartSpec) -> StartResult:
        """Spawn (or attach to) the workers; return when all have said HELLO, before they load anything.

        Raises ``StartFailed`` naming who is missing at the deadline; whatever was taken is given back by ``stop``.
        """

    @abstractmethod
    def submit(self, envelope: Envelope) -> Future[Replies]:
        """Send a call and return at once; thread-safe, FIFO per rank.

        The future completes when every rank of the envelope has answered or failed, and carries all of it.
        """

    @abstractmethod
    def health(self) -> ExecutorHealth:
        """What is known now, without blocking."""

    @abstractmethod
    def stop(self, deadline: float) -> None:
        """End every worker by ``deadline`` (monotonic seconds) and give back what was taken.

        Pending futures end with an error. Calling it twice, or after a failed ``start``, is allowed.
        """

    def exchange(self, name: str, value: bytes, deadline: float) -> tuple[bytes, ...]:
        """What every rank's engine gives under ``name``, in rank order: ``value`` is this one's. Waits for the slowest.

        For executors with ``every_rank_schedules``, which must have it: the engines agree through it before the
        workers load, and compare their schedules while they run. It must not depend on the workers: their threads may
        be in a collective that does not end. Each rank calls it with the same names in the same order. Raises
        ``TimeoutError`` that names the ranks that have not come by ``deadline`` (monotonic seconds).
        """
        raise NotImplementedError(f"{type(self).__name__} declares every_rank_schedules, and has no exchange")

    def stacks(self, deadline: float) -> dict[int, str]:
        """The Python stacks of the workers that answer by ``deadline`` (monotonic seconds), by rank. Optional.

        Asked when a step has come past its deadline, for the report; must not need the workers' main threads.
        """
        return {}

    @final
    def collective_rpc(
        self,
        call: Call,
        *,
        timeout: float | None = None,
        ranks: tuple[int, ...] | None = None,
        traceparent: str = "",
    ) -> list[object]:
        """Send ``call`` to the ranks (None: all), wait, and return their results in rank order.

        Raises ``WorkerFailed`` with the first rank's failure, ``TimeoutError`` after ``timeout`` seconds.
        """
        deadline = self.context.runtime.clock.now() + (self.context.call_timeout if timeout is None else timeout)
        sent = self.submit_call(call, deadline=deadline, ranks=ranks, traceparent=traceparent)
        return self.context.unwrap(self.context.runtime.wait(sent.future, deadline))

    @final
    def submit_call(
        self,
        call: Call,
        *,
        deadline: float | None = None,
        ranks: tuple[int, ...] | None = None,
        traceparent: str = "",
    ) -> PendingCall:
        """Send ``call`` without waiting for the answer. Raises what ``encode`` raises when it cannot be sent."""
        envelope = Envelope(
            generation=self.context.generation(),
            call_id=self.context.next_call_id(),
            payload=self.context.encode(call),
            ranks=ranks,
            deadline=deadline,
            traceparent=traceparent,
        )
        return PendingCall(call_id=envelope.call_id, future=self.submit(envelope))

    @final
    def execute_model(
        self, scheduler_output: SchedulerOutput, *, deadline: float | None = None, traceparent: str = ""
    ) -> PendingCall:
        """Send one step to all ranks without waiting for the answer."""
        return self.submit_call(
            ExecuteModel(scheduler_output=scheduler_output), deadline=deadline, traceparent=traceparent
        )

    @final
    def sample_tokens(
        self, grammar_output: GrammarOutput | None, *, deadline: float | None = None, traceparent: str = ""
    ) -> PendingCall:
        """Ask for the tokens of a step whose ``execute_model`` answered None."""
        return self.submit_call(SampleTokens(grammar_output=grammar_output), deadline=deadline, traceparent=traceparent)
