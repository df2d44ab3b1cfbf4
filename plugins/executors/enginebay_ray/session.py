"""One life of the workers: their actors, the line to them, what waits for them, and how each ended."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from enginebay.errors import EngineDead, StartFailed, WorkerLost
from enginebay.interfaces import ExecutorHealth, RankHealth, StartSpec, WorkerExit
from enginebay.messages import Envelope, Replies, WorkerFailure, WorkerInfo
from enginebay.runtime import ChannelClosed, Runtime
from enginebay.transport import (
    DamagedMessage,
    PendingCalls,
    decode_start_payload,
    encode_envelope,
    encode_start_payload,
)
from enginebay.transport.socket import SocketLine
from enginebay_ray.actor import ActorStart
from enginebay_ray.actors import bounded, devices_by_node, end_actors, make_actor, settle, stacks_of
from enginebay_ray.door import load_ray
from enginebay_ray.held import HeldProcesses
from enginebay_ray.placement import Placement
from enginebay_ray.seats import seated
from enginebay_ray.words import death_in_words, last_lines, log_of

__all__ = ["Session"]

_LOG = logging.getLogger("enginebay.ray")
_RAYS_WORD_SECONDS: Final = 0.5
"""How long a lost connection waits for what Ray knows of the death; its word comes within 10 ms when it is alive."""
_GOOD_END_SECONDS: Final = 2.0
"""How long a worker that was asked to end may take for it before its actor is killed."""

_GIVE_BACK_SECONDS: Final = 3.0
"""How long Ray may take to hear that actors and placement are no longer needed: it also sees it when we disconnect."""


class Session:
    """The workers from their placement to their end. ``report`` is told of each that died without being asked to."""

    def __init__(
        self, runtime: Runtime, spec: StartSpec, placement: Placement, report: Callable[[WorkerExit], None]
    ) -> None:
        self.generation = spec.generation
        self.stopping = False
        self._runtime = runtime
        self._spec = spec
        self._placement = placement
        self._report = report
        self._ranks = tuple(place.rank for place in spec.world.ranks)
        self._incarnations = dict(zip(self._ranks, spec.incarnations, strict=True))
        self._calls = PendingCalls(self._ranks)
        self._hello: dict[int, Future[WorkerInfo]] = {rank: Future() for rank in self._ranks}
        self._served: dict[int, Future[str]] = {rank: Future() for rank in self._ranks}
        """How each worker's life ended, in words; "" for a good end."""
        self._token = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._lost: dict[int, WorkerExit] = {}
        self._left: set[int] = set()
        self._logs: dict[int, Path | None] = {}
        self._actors: dict[int, Any] = {}
        self._held = HeldProcesses()
        self._line: SocketLine | None = None

    def launch(
        self,
        environment: dict[str, str],
        *,
        address: str,
        heartbeat: float,
        record: Callable[[str, str], None],
    ) -> tuple[WorkerInfo, ...]:
        """Start an actor in each seat, and return when every rank has said HELLO.

        ``address`` is where the engine listens for them. Raises ``StartFailed`` naming who is missing, or what ended.
        """
        placement, deadline, now = self._placement, self._spec.deadline, self._runtime.clock.now
        payloads = self._payloads()
        for rank, seat in zip(self._ranks, placement.seats, strict=True):
            self._actors[rank] = make_actor(placement, seat, self._name(rank))
        line = self._line = SocketLine(
            self._incarnations,
            address=address,
            spawner=self._runtime.spawner,
            on_hello=self._on_hello,
            on_reply=self._calls.answer,
            on_lost=self._on_lost,
            on_left=self._on_left,
            heartbeat=heartbeat,
            record=record,
        )
        devices = devices_by_node(self._actors, placement, max(0.0, deadline - now()))
        across = len({seat.node.node_id for seat in placement.seats}) > 1
        for rank, seat, payload, ticket in zip(self._ranks, placement.seats, payloads, line.tickets, strict=True):
            own, on_node = devices.get(rank, ("", ""))
            start = ActorStart(
                payload=payload,
                ticket=ticket,
                environment=environment,
                address=seat.node.address if across else "",
                patience=max(0.0, deadline - now()),
                own_devices=own,
                node_devices=on_node,
            )
            end = self._actors[rank].serve.remote(msgspec.msgpack.encode(start)).future()
            end.add_done_callback(partial(self._on_end, rank))
        return self._wait_for_hello()

    def submit(self, envelope: Envelope) -> Future[Replies]:
        """Send a call; a rank that is lost, or a line that is closed, answers with a failure."""
        frame = encode_envelope(envelope)
        with self._lock:  # the order of sending is the order of submitting
            future = self._calls.open(envelope)
            try:
                assert self._line is not None, "an executor that has not started submits nothing"
                self._line.send(frame, envelope.ranks)
            except ChannelClosed:
                closed = True
            else:
                closed = False
        if closed:
            for rank in self._ranks if envelope.ranks is None else envelope.ranks:
                failure = self._failure(rank, "the executor was stopped before the worker answered")
                self._calls.refuse(rank, envelope.generation, envelope.call_id, failure)
        return future

    def health(self) -> ExecutorHealth:
        """What the workers' beats and ends have told so far."""
        line = self._line
        if self.stopping or line is None:
            return ExecutorHealth(alive=False, detail="stopped" if self.stopping else "not started")
        now, ranks, phases = self._runtime.clock.now_ns(), [], []
        for rank in self._ranks:
            beat = line.heartbeat(rank)
            age = (now - beat.at_ns) / 1e9 if beat.at_ns else 0.0
            gone = rank in self._lost or rank in self._left
            state, budget = "gone" if gone else "", beat.budget_s
            ranks.append(RankHealth(rank=rank, phase=beat.phase, step=beat.step, age=age, state=state, budget=budget))
            phases.append(f"rank {rank}: {self._lost[rank].reason if rank in self._lost else beat.phase}")
        return ExecutorHealth(
            alive=not self._lost and not self._left,
            lost_ranks=tuple(sorted(self._lost)),
            detail="; ".join(phases),
            ranks=tuple(ranks),
        )

    def stacks(self, deadline: float) -> dict[int, str]:
        """Asked of the actors beside their workers' loops."""
        alive = {rank: actor for rank, actor in self._actors.items() if not (rank in self._lost or rank in self._left)}
        return stacks_of(alive, self._runtime, deadline)

    def end(self, deadline: float) -> None:
        """Hang up, wait for good ends, kill what is left, and give the placement back. Idempotent."""
        with self._lock:
            if self.stopping:
                return
            self.stopping = True
        self._calls.close(lambda rank: self._failure(rank, "the executor was stopped before the worker answered"))
        if self._line is not None:
            self._line.close()
        until = min(deadline, self._runtime.clock.now() + _GOOD_END_SECONDS)
        for rank in self._actors:
            if not self._hello[rank].done():
                continue  # it has not begun
            try:
                self._runtime.wait(self._served[rank], until)
            except TimeoutError:
                continue  # it is killed below, with those that have ended
        actors, self._actors = self._actors, {}

        def give_back() -> None:
            if load_ray().is_initialized():  # Ray would start a new cluster for whoever asks it for something
                end_actors(actors)
                self._placement.remove()

        now = self._runtime.clock.now()
        if not bounded(self._runtime, "end", give_back, min(max(deadline, now + 1.0), now + _GIVE_BACK_SECONDS)):
            _LOG.error(
                "Ray did not take back %d actors and their placement in time; is the cluster there?", len(actors)
            )
        self._held.kill()  # Ray does it in its own time, and never when its server or the node's part of it has gone

    def _name(self, rank: int) -> str:
        """The actor's name, which no other has, nor will have, in the cluster."""
        return f"enginebay-{self._incarnations[rank]}-{self._token}"

    def _payloads(self) -> list[bytes]:
        """The payloads with the places as Ray chose them."""
        seats = dict(zip(self._ranks, self._placement.seats, strict=True))
        payloads = []
        for rank, payload in zip(self._ranks, self._spec.payloads, strict=True):
            try:
                payloads.append(encode_start_payload(seated(decode_start_payload(payload), seats)))
            except DamagedMessage as error:
                raise StartFailed(f"rank {rank}: the worker cannot be started: {error}") from error
        return payloads

    def _wait_for_hello(self) -> tuple[WorkerInfo, ...]:
        workers: list[WorkerInfo] = []
        for rank in self._ranks:
            try:
                workers.append(self._runtime.wait(self._hello[rank], self._spec.deadline))
            except TimeoutError:
                raise StartFailed(self._missing()) from None
        return tuple(workers)

    def _missing(self) -> str:
        late = [
            f"rank {rank} (node {seat.node.address}, actor {self._name(rank)})"
            for rank, seat in zip(self._ranks, self._placement.seats, strict=True)
            if not self._hello[rank].done()
        ]
        return (
            f"{', '.join(late)} did not say HELLO before the start's deadline: look at the actor's log on its node; "
            "it must have this version of enginebay, and reach the engine's node"
        )

    def _on_hello(self, info: WorkerInfo) -> None:
        if info.host == socket.gethostname():
            self._logs[info.rank] = log_of(info.pid)
        self._held.take(info)
        settle(self._hello[info.rank], info)

    def _on_left(self, rank: int) -> None:
        self._left.add(rank)
        self._calls.lose(rank, self._failure(rank, f"rank {rank}: the worker was shut down"))

    def _on_lost(self, rank: int, why: str) -> None:
        """The line's thread: the connection has gone, or the worker has said its last words."""

        def conclude() -> None:
            try:
                said = self._runtime.wait(self._served[rank], self._runtime.clock.now() + _RAYS_WORD_SECONDS)
            except TimeoutError:
                said = ""
            self._conclude(rank, [*why.splitlines(), *said.splitlines()])

        self._runtime.spawner.thread(f"enginebay-ray-lost-{rank}", conclude)

    def _on_end(self, rank: int, end: Future[str]) -> None:
        """Ray's thread: the actor's one call has returned, or cannot return any more."""
        if end.cancelled():
            return
        error = end.exception()
        said = death_in_words(error) if error is not None else end.result()
        settle(self._served[rank], said)
        if said and rank not in self._left:
            self._conclude(rank, said.splitlines())

    def _conclude(self, rank: int, said: list[str]) -> None:
        """The end of one worker that nobody asked for: told once, with all that is known."""
        with self._lock:
            if rank in self._lost or rank in self._left or self.stopping:
                return
            reason = "; ".join(dict.fromkeys(said))
            worker_exit = self._lost[rank] = WorkerExit(
                rank=rank,
                incarnation=self._incarnations[rank],
                last_log_lines=tuple(last_lines(self._logs.get(rank))),
                reason=reason,
            )
        if not self._hello[rank].done():
            failed = StartFailed(f"rank {rank}: the worker ended before HELLO: {reason}")
            for hello in self._hello.values():  # whoever waits for another rank waits no longer
                settle(hello, failed)
            return
        self._report(worker_exit)
        self._calls.lose(rank, self._failure(rank, f"rank {rank}: the worker's actor has ended: {reason}"))

    def _failure(self, rank: int, message: str) -> WorkerFailure:
        kind = EngineDead.__name__ if self.stopping else WorkerLost.__name__
        phase = self._line.heartbeat(rank).phase if self._line is not None else "start"
        return WorkerFailure(
            phase=phase,
            error_type=kind,
            message=message,
            kind=kind,
            rank=rank,
            host=socket.gethostname(),
            pid=os.getpid(),
            last_log_lines=self._lost[rank].last_log_lines if rank in self._lost else (),
        )
