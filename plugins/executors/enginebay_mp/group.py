"""One life of all the workers, from the spawn to the last one reaped. Holds no executor: that can be dropped."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Final

from enginebay.errors import EngineDead, StartFailed, WorkerHung, WorkerLost
from enginebay.interfaces import ExecutorContext, ExecutorHealth, StartResult, StartSpec, WorkerExit
from enginebay.messages import Envelope, Replies, WorkerFailure
from enginebay.runtime import ChannelClosed
from enginebay.transport import DamagedMessage, PendingCalls, decode_reply, encode_envelope_head
from enginebay.transport.shared import EngineEnd
from enginebay_mp.crew import LAST_MOMENT, Crew
from enginebay_mp.logs import Printer
from enginebay_mp.monitor import Monitor
from enginebay_mp.options import MpOptions
from enginebay_mp.process import WorkerProcess

__all__ = ["Group"]

_LOG: Final = logging.getLogger("enginebay.mp")
_GRACE: Final = 5.0
"""The longest that a worker is waited for, once its line is closed, before it is killed."""
_SHARE_OF_GRACE: Final = 0.6
"""Of the time until a deadline; the rest is for what the kernel needs to free a killed worker's memory."""
_LOOK: Final = 0.05

_LIVE: Final[weakref.WeakSet[Group]] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Nobody stopped these: the interpreter ends, and their workers with it, and not by a signal if that can be."""
    for group in list(_LIVE):
        group.end(time.monotonic() + _GRACE)


class Group:
    """All the workers of one generation. ``launch``, then ``wait_for_hello``; ``end`` undoes both, at any time."""

    def __init__(
        self, context: ExecutorContext[MpOptions], spec: StartSpec, on_lost: Callable[[WorkerExit], None]
    ) -> None:
        """Keeps nothing of ``context`` that may lead back to the executor: ``on_lost`` tells of a worker's death."""
        self.generation = spec.generation
        self.stopping = False
        self._options, self._runtime, self._spec = context.options, context.runtime, spec
        self._clock, self._call_timeout = context.runtime.clock, context.call_timeout
        self._on_lost = on_lost
        self._owner = os.getpid()
        self._crew = Crew(context, spec)
        self._pending = PendingCalls(self._crew.ranks, self._look)
        self._line: EngineEnd | None = None
        self._sending, self._ending = threading.Lock(), threading.Lock()
        self._taking = threading.RLock()  # what is taken off the line is answered before anybody's loss is told
        self._hello: Future[None] = Future()
        self._kill_at: float | None = None
        name = f"enginebay-mp-{spec.generation}"
        self._printer = Printer(context.runtime, f"{name}-logs")
        self._monitor = Monitor(context.runtime, name, tick=self._tick, at_end=self._release)

    @property
    def is_over(self) -> bool:
        """Whether every worker has been reaped."""
        return not self._crew.running

    def launch(self) -> None:
        """Spawn every worker; none is waited for."""
        options = self._options
        _LIVE.add(self)
        try:
            self._line = EngineEnd.create(self._crew.ranks, slots=options.ring_slots, slot_bytes=options.slot_bytes)
            self._monitor.watch(self._line.fileno_of_replies(), self._take_replies)
            self._crew.spawn(self._line, self._printer, self._listen_to)
        finally:
            self._monitor.start()  # also after a failure: it is the one that reaps

    def wait_for_hello(self) -> StartResult:
        """Every rank's HELLO by the deadline of the start; raises ``StartFailed`` naming who is missing, and why."""
        begun = self._clock.now()
        try:
            self._runtime.wait(self._hello, self._spec.deadline)
        except TimeoutError:
            missing = "; ".join(worker.missing() for worker in self._crew.workers.values() if worker.hello is None)
            raise StartFailed(f"after {self._clock.now() - begun:.0f} s, {missing}") from None
        return StartResult(workers=tuple(w.hello for w in self._crew.workers.values() if w.hello is not None))

    def submit(self, envelope: Envelope) -> Future[Replies]:
        """Send a call; a call that cannot be sent has failures for its answer."""
        head = encode_envelope_head(envelope)
        until = envelope.deadline
        if until is None:
            until = self._clock.now() + self._call_timeout
        with self._sending:  # opened and sent under one lock: the order of sending is the order of submitting
            future, line = self._pending.open(envelope), self._line
            if not future.done() and line is not None:  # the line is closed after everything was answered
                try:
                    line.send(envelope.payload, envelope.ranks, until, head=head)
                except ChannelClosed:
                    self._pending.close(self._stopped)
                except TimeoutError as error:
                    for rank in self._crew.ranks if envelope.ranks is None else envelope.ranks:
                        failure = self._crew.workers[rank].as_failure(
                            WorkerHung.__name__, str(error), self._phase(rank)
                        )
                        self._pending.refuse(rank, envelope.generation, envelope.call_id, failure)
        return future

    def health(self) -> ExecutorHealth:
        """By the heartbeats and /proc; asks nobody."""
        workers = list(self._crew.workers.values())
        said = [f"rank {worker.rank} {worker.how_it_ended()}" for worker in workers if not worker.is_running]
        if self.stopping:
            running = ", ".join(str(worker.rank) for worker in self._crew.running)
            detail = f"stopping; rank {running} is running" if running else "stopped"
            return ExecutorHealth(alive=False, detail=detail)
        if said:
            lost = tuple(worker.rank for worker in self._crew.lost)
            return ExecutorHealth(alive=False, lost_ranks=lost, detail="; ".join(said))
        return ExecutorHealth(alive=True, ranks=self._crew.health(self._line))

    def stacks(self, deadline: float) -> dict[int, str]:
        """The Python stacks of the workers that answer by then."""
        return self._crew.stacks(deadline)

    def end(self, deadline: float) -> None:
        """End every worker and reap it, by ``deadline`` if the kernel lets us. Idempotent, from any thread."""
        if os.getpid() != self._owner:  # a fork of the engine's process: the workers are not its children
            return
        here = self._monitor.is_here()
        if not self._ending.acquire(blocking=not here):
            return  # the monitor's own thread must not wait for who waits for it
        try:
            self._ask_to_leave(self._grace(deadline))
            if here or not self._monitor.join(deadline - self._clock.now()):
                self._crew.put_down()
            if not here and not self._monitor.join(LAST_MOMENT):
                _LOG.error("executor 'mp': the thread that watches generation %d does not end", self.generation)
        finally:
            self._ending.release()

    def abandon(self) -> None:
        """Nobody refers to the executor any more: the workers end in the background. Never blocks."""
        if os.getpid() == self._owner:
            self._ask_to_leave(self._clock.now() + _GRACE)

    def _grace(self, deadline: float) -> float:
        """Until when the workers may leave by themselves; those whose peer is lost wait for it in vain."""
        now = self._clock.now()
        if self._crew.lost:
            return now
        return now + min(_GRACE, max(0.0, deadline - now) * _SHARE_OF_GRACE)

    def _ask_to_leave(self, kill_at: float) -> None:
        self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)
        self.stopping = True
        self._pending.close(self._stopped)
        self._monitor.post(self._close_line)  # also from there, where it may be in the middle of that very line

    def _look(self) -> bool:
        """Take what comes within a moment, in the thread that waits for it: the monitor's needs longer to wake.

        Not in the main thread, where Ctrl-C could come between an answer and its call.
        """
        return threading.current_thread() is not threading.main_thread() and self._take(EngineEnd.look)

    def _take(self, take: Callable[[EngineEnd], list[tuple[int, bytes]]]) -> bool:
        with self._taking:
            line = self._line
            if line is None or self.stopping:
                return False
            try:
                taken = take(line)
            except ChannelClosed:  # in between
                return False
            for rank, frame in taken:
                try:
                    self._pending.answer(rank, *decode_reply(frame))
                except DamagedMessage as error:
                    self._crew.workers[rank].kill(str(error))
            for rank, why in line.lost.items():
                if self._crew.workers[rank].is_running and not self._crew.workers[rank].killed:
                    self._crew.workers[rank].kill(why)
        return bool(taken)

    # What follows runs in the monitor's thread.

    def _listen_to(self, worker: WorkerProcess) -> None:
        def hear() -> None:
            if not worker.hear():
                self._monitor.unwatch(worker.ready)
                self._look_at_hello()

        def read() -> None:
            if not worker.log.read():
                self._monitor.unwatch(worker.log.descriptor)

        self._monitor.watch(worker.ready, hear)
        self._monitor.watch(worker.log.descriptor, read)
        if worker.process.fileno() >= 0:
            self._monitor.watch(worker.process.fileno(), lambda: self._look_for_end(worker))

    def _take_replies(self) -> None:
        self._take(EngineEnd.take_replies)

    def _look_at_hello(self) -> None:
        """Complete the start when every rank has said HELLO, or one of them cannot."""
        workers = self._crew.workers.values()
        missing = [worker for worker in workers if worker.hello is None]
        errors = [error for worker in missing if (error := worker.start_error()) is not None]
        if errors:
            _settle(self._hello, errors[0])
        elif not missing and len(workers) == len(self._crew.ranks):
            _settle(self._hello, None)

    def _look_for_end(self, worker: WorkerProcess) -> None:
        if not worker.is_running or not worker.reap():
            return
        worker.hear()
        self._take_replies()  # an answer that has come counts for more than the death after it
        worker.log.drain()
        for descriptor in (worker.process.fileno(), worker.ready, worker.log.descriptor):
            self._monitor.unwatch(descriptor)
        if self._line is not None and not self.stopping:
            worker.left = worker.exit_code == 0 and self._phase(worker.rank) == "shutdown"
            self._tell_of_loss(worker)
            self._line.lose(worker.rank, worker.how_it_ended())
        self._look_at_hello()
        worker.end_descendants()

    def _tell_of_loss(self, worker: WorkerProcess) -> None:
        phase = self._phase(worker.rank)
        where = f" in {phase}" if phase else ""
        text = worker.with_last_lines(f"{worker.named} {worker.how_it_ended()}{where}")
        if not worker.left:  # else it is nobody's loss: it was asked to leave
            self._on_lost(worker.as_exit())  # first: who is woken by the answers below asks how it ended
        self._pending.lose(worker.rank, worker.as_failure(WorkerLost.__name__, text, phase))

    def _tick(self) -> float | None:
        """Called after every round: seconds to the next one, None for no hurry; ``StopIteration`` when all is over."""
        for worker in self._crew.running:
            if worker.process.fileno() < 0 or self.stopping:
                self._look_for_end(worker)
        running = self._crew.running
        if self.stopping and not running:
            raise StopIteration
        if self._kill_at is not None:
            late = self._clock.now() >= self._kill_at
            for worker in running:
                if not worker.killed and (late or worker.state() == "stopped"):
                    worker.kill()
            return _LOOK
        return _LOOK if any(worker.process.fileno() < 0 for worker in running) else None

    def _close_line(self) -> None:
        """Every worker that waits for a call sees the end of its line, and leaves."""
        line, self._line = self._line, None
        if line is not None:
            self._monitor.unwatch(line.fileno_of_replies())
            line.close()

    def _release(self) -> None:
        self._close_line()
        for worker in self._crew.workers.values():
            worker.close()
        self._printer.close(1.0)
        _LIVE.discard(self)

    # What is said of the workers, from any thread.

    def _phase(self, rank: int) -> str:
        line = self._line
        return line.heartbeat(rank).phase if line is not None else ""

    def _stopped(self, rank: int) -> WorkerFailure:
        message, worker = "the executor was stopped before the worker answered", self._crew.workers.get(rank)
        if worker is None:  # the start failed before it came to this one
            kind = EngineDead.__name__
            return WorkerFailure(phase="start", error_type=kind, message=message, kind=kind, rank=rank)
        return worker.as_failure(EngineDead.__name__, message, self._phase(rank))


def _settle(future: Future[None], error: Exception | None) -> None:
    try:
        future.set_exception(error) if error is not None else future.set_result(None)
    except InvalidStateError:
        return  # it was settled by another rank
