"""An executor of several ranks in threads of this process, whole, and one broken copy for each fault of the kit."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from enginebay.errors import EngineDead, StartFailed, WorkerLost
from enginebay.hookspecs import hookimpl
from enginebay.interfaces import (
    Executor,
    ExecutorCapabilities,
    ExecutorContext,
    ExecutorHealth,
    ExecutorPlugin,
    Finding,
    NoOptions,
    Reclaim,
    StartResult,
    StartSpec,
)
from enginebay.messages import Ack, Envelope, Replies, WorkerFailure, WorkerInfo
from enginebay.runtime import Channel, ChannelClosed
from enginebay.transport import (
    DamagedMessage,
    PendingCalls,
    decode_reply,
    decode_result,
    decode_start_payload,
    encode,
    encode_envelope,
    encode_reply,
)
from enginebay.worker import serve


class End:
    """A worker's end of its line."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def receive(self, deadline: float | None) -> bytes | None:
        return self._channel.receive(deadline)

    def reply(self, generation: int, call_id: int, payload: bytes) -> None:
        self._channel.send(encode_reply(generation, call_id, payload))

    def heartbeat(self, phase: str) -> None:
        return

    def closed(self) -> bool:
        return self._channel.is_closed


class Threads(Executor[NoOptions]):
    """Whole. What the broken ones change is ``take`` (an answer that came) and ``put`` (a frame that goes out)."""

    def __init__(self, context: ExecutorContext[NoOptions]) -> None:
        super().__init__(context)
        self.lines: dict[int, Channel] = {}
        self.calls = PendingCalls((0,))
        self.stopped = False
        self._ends: list[Any] = []

    def start(self, spec: StartSpec) -> StartResult:
        self.calls, self.stopped, workers = PendingCalls([place.rank for place in spec.world.ranks]), False, []
        for place, payload in zip(spec.world.ranks, spec.payloads, strict=True):
            try:
                start = decode_start_payload(payload)
            except DamagedMessage as error:
                raise StartFailed(f"rank {place.rank}: {error}") from None
            ours, theirs = self.context.runtime.transport.pair(f"threads.{place.rank}")
            self.lines[place.rank] = ours
            here = {"host": socket.gethostname(), "pid": os.getpid(), "incarnation": start.incarnation}
            workers.append(WorkerInfo(rank=place.rank, local_rank=place.local_rank, **here))
            spawn, take = self.context.runtime.spawner.thread, self.taker(place.rank)
            end = End(theirs)
            self._ends.append(spawn("threads-worker", lambda payload=payload, end=end: serve(payload, end)))
            spawn("threads-reader", lambda line=ours, take=take: read(line, take))
        lines = list(self.lines.values())
        self.context.record_resource("lines", str(len(lines)), lambda: seen(all(line.is_closed for line in lines)))
        return StartResult(workers=tuple(workers))

    def taker(self, rank: int) -> Callable[[int, int, bytes], None]:
        """Where the answers of one rank go; must not hold the executor, so that it can be forgotten."""
        calls = self.calls
        return lambda generation, call_id, payload: calls.answer(rank, generation, call_id, payload)

    def submit(self, envelope: Envelope) -> Future[Replies]:
        frame = encode_envelope(envelope)
        future = self.calls.open(envelope)
        for rank in self.lines if envelope.ranks is None else envelope.ranks:
            self.put(rank, frame)
        return future

    def put(self, rank: int, frame: bytes) -> None:
        try:
            self.lines[rank].send(frame)
        except ChannelClosed:
            self.calls.lose(rank, failure(rank))

    def health(self) -> ExecutorHealth:
        return ExecutorHealth(alive=bool(self.lines) and not self.stopped)

    def stop(self, deadline: float) -> None:
        self.stopped = True
        for line in self.lines.values():
            line.close()
        self.calls.close(lambda rank: failure(rank, EngineDead.__name__))
        for end in self._ends:
            end.join(max(0.0, deadline - self.context.runtime.clock.now()))

    def __del__(self) -> None:
        for line in self.__dict__.get("lines", {}).values():
            line.close()


def read(line: Channel, take: Callable[[int, int, bytes], None]) -> None:
    while (frame := line.receive(None)) is not None:
        take(*decode_reply(frame))


def seen(free: bool) -> Finding:
    verdict = Reclaim.RECLAIMED if free else Reclaim.PENDING
    return Finding(what="lines", verdict=verdict, reason="" if free else "not all are closed")


def failure(rank: int, kind: str = WorkerLost.__name__) -> WorkerFailure:
    return WorkerFailure(phase="call", error_type=kind, kind=kind, message=f"rank {rank} is gone", rank=rank)


class Blocks(Threads):
    """Waits for the answer before it returns from ``submit``."""

    def submit(self, envelope: Envelope) -> Future[Replies]:
        future = super().submit(envelope)
        self.context.runtime.wait(future, None)
        return future


class AnswersTheNext(Threads):
    """Takes whatever a rank says for the answer to the call that came last."""

    def taker(self, rank: int) -> Callable[[int, int, bytes], None]:
        calls, asked = self.calls, self.asked
        return lambda generation, call_id, payload: calls.answer(rank, *asked[-1], payload)

    def start(self, spec: StartSpec) -> StartResult:
        self.asked: list[tuple[int, int]] = []
        return super().start(spec)

    def submit(self, envelope: Envelope) -> Future[Replies]:
        self.asked.append((envelope.generation, envelope.call_id))
        return super().submit(envelope)


class AsksOneRank(Threads):
    """Takes the first rank's word for all of them."""

    def taker(self, rank: int) -> Callable[[int, int, bytes], None]:
        calls, ranks = self.calls, tuple(range(2))

        def take(generation: int, call_id: int, payload: bytes) -> None:
            calls.answer(rank, generation, call_id, payload)
            for other in ranks:
                calls.answer(other, generation, call_id, encode(Ack()))

        return take


class LosesFailures(Threads):
    """What goes wrong on a rank without data is acknowledged."""

    def taker(self, rank: int) -> Callable[[int, int, bytes], None]:
        calls = self.calls

        def take(generation: int, call_id: int, payload: bytes) -> None:
            lost = rank > 0 and isinstance(decode_result(payload), WorkerFailure)
            calls.answer(rank, generation, call_id, encode(Ack()) if lost else payload)

        return take


class SwapsCalls(Threads):
    """Keeps each third frame back until the next one has gone."""

    def start(self, spec: StartSpec) -> StartResult:
        self.count, self.kept = 0, dict[int, bytes]()
        return super().start(spec)

    def put(self, rank: int, frame: bytes) -> None:
        self.count += 1
        if self.count > 20 and self.count % 3 == 0 and rank not in self.kept:
            self.kept[rank] = frame
            return
        super().put(rank, frame)
        if rank in self.kept:
            super().put(rank, self.kept.pop(rank))


class AsksAll(Threads):
    """Sends every call to every rank, whomever it is for."""

    def submit(self, envelope: Envelope) -> Future[Replies]:
        frame = encode_envelope(envelope)
        future = self.calls.open(envelope)
        for rank in self.lines:
            self.put(rank, frame)
        return future


class CutsMessages(Threads):
    """A frame over a megabyte is lost, and the call answered by nobody."""

    def put(self, rank: int, frame: bytes) -> None:
        if len(frame) > 1_000_000:
            self.calls.lose(rank, failure(rank))
        else:
            super().put(rank, frame)


class ForgetsWhoWaits(Threads):
    """``stop`` ends the workers, and lets those who wait for them wait."""

    def stop(self, deadline: float) -> None:
        self.stopped = True
        for line in self.lines.values():
            line.close()


class KeepsItsWorkers(Threads):
    """``stop`` answers who waits, and ends nobody."""

    def stop(self, deadline: float) -> None:
        self.stopped = True
        self.calls.close(lambda rank: failure(rank, EngineDead.__name__))


class IsNeverFree(Threads):
    """Its probe says for ever that something is held."""

    def start(self, spec: StartSpec) -> StartResult:
        self.context.record_resource("seat", "7", lambda: seen(False))
        return super().start(spec)


class RaisesInItsProbe(Threads):
    """Its probe is broken."""

    def start(self, spec: StartSpec) -> StartResult:
        self.context.record_resource("seat", "7", lambda: seen(bool({}["free"])))
        return super().start(spec)


class SaysAWord(Threads):
    """Its probe says something else than probes do."""

    def start(self, spec: StartSpec) -> StartResult:
        self.context.record_resource("seat", "7", lambda: Finding(what="seat", verdict="free"))  # type: ignore[arg-type]  # the fault under test
        return super().start(spec)


class HangsInItsProbe(Threads):
    """Its probe waits for the next start."""

    def start(self, spec: StartSpec) -> StartResult:
        self.let_go = threading.Event()
        let_go = self.let_go
        self.context.record_resource("seat", "7", lambda: seen(let_go.wait()))
        return super().start(spec)


class GivesItsProbeOnce(Threads):
    """Gives its probe when it is made, and so none to its second workers."""

    def __init__(self, context: ExecutorContext[NoOptions]) -> None:
        super().__init__(context)
        context.record_resource("seat", "7", lambda: seen(True))


class NamesNobody(Threads):
    """A start that fails does not say on which rank."""

    def start(self, spec: StartSpec) -> StartResult:
        try:
            return super().start(spec)
        except StartFailed:
            raise StartFailed("it did not start") from None


EVERY = {
    one.__name__.lower(): one
    for one in (
        *(Threads, Blocks, AnswersTheNext, AsksOneRank, LosesFailures, SwapsCalls, AsksAll, CutsMessages),
        *(ForgetsWhoWaits, KeepsItsWorkers, NamesNobody),
        *(IsNeverFree, RaisesInItsProbe, SaysAWord, HangsInItsProbe, GivesItsProbeOnce),
    )
}


@hookimpl
def enginebay_register_executors() -> list[ExecutorPlugin[NoOptions]]:
    """All of them."""
    return [
        ExecutorPlugin(
            name=name,
            options=NoOptions,
            factory=factory,
            capabilities=ExecutorCapabilities(max_in_flight=2, restartable=True),
        )
        for name, factory in EVERY.items()
    ]
