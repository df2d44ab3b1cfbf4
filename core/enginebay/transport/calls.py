"""Calls that wait for their answers: what the parent half of every executor of several workers keeps."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

from enginebay.errors import WorkerLost
from enginebay.messages import Envelope, RankReply, Replies, WorkerFailure

__all__ = ["PendingCalls", "not_started"]


def not_started(envelope: Envelope) -> Future[Replies]:
    """What ``submit`` returns when there is no worker to send to: a failure for each rank that the envelope names."""
    failure = WorkerFailure(
        phase="submit",
        error_type=WorkerLost.__name__,
        message="the executor has not been started",
        kind=WorkerLost.__name__,
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    future: Future[Replies] = Future()
    replies = tuple(RankReply(rank=rank, failure=failure) for rank in envelope.ranks or (0,))
    future.set_result(Replies(generation=envelope.generation, call_id=envelope.call_id, replies=replies))
    return future


class _Answer(Future[Replies]):
    """Whoever waits for it looks for it first."""

    def __init__(self, look: Callable[[], bool]) -> None:
        super().__init__()
        self._look = look

    def result(self, timeout: float | None = None) -> Replies:
        while not self.done() and self._look():
            pass  # something has come, and not yet all of this
        return super().result(timeout)


@dataclass(slots=True)
class _Pending:
    generation: int
    call_id: int
    missing: set[int]
    future: _Answer
    replies: dict[int, RankReply] = field(default_factory=dict)


class PendingCalls:
    """The calls on one group's workers that some rank has not answered. Thread-safe.

    ``open`` before the call is sent; its future completes when every rank of the envelope has answered (``answer``) or
    is lost (``lose``). A rank that is lost answers every later call with the same failure at once. Futures complete
    outside the lock, in the thread whose answer was the last.

    ``look`` is called by who waits for a future's result, before it sleeps: it brings what comes within microseconds,
    by ``answer``, which spares that the way through another thread, and says whether anything has come.

    ``close`` may come in the middle of any other method, in the same thread: the collector of garbage may end an
    executor wherever memory is taken. So the lock can be taken twice, and each method is right at each of its lines: a
    call is expected before it is asked who is lost, answered before it is no more missing, and completed by whoever
    takes it out.
    """

    def __init__(self, ranks: Sequence[int], look: Callable[[], bool] = lambda: False) -> None:
        self._ranks = tuple(ranks)
        self._look = look
        self._lock = threading.RLock()
        self._pending: dict[tuple[int, int], _Pending] = {}
        self._lost: dict[int, WorkerFailure] = {}
        self.num_dropped = 0
        """Answers that nobody waited for: late ones, and those of an older generation."""

    def open(self, envelope: Envelope) -> Future[Replies]:
        """Expect an answer from each rank that the envelope names (None: from all)."""
        asked = self._ranks if envelope.ranks is None else envelope.ranks
        call = _Pending(envelope.generation, envelope.call_id, set(asked), _Answer(self._look))
        with self._lock:
            self._pending[call.generation, call.call_id] = call
            done = self._without_the_lost(call)
        if done:
            _complete(call)
        return call.future

    def answer(self, rank: int, generation: int, call_id: int, payload: bytes) -> None:
        """One rank's encoded result; one that nobody waits for is counted and dropped."""
        self._settle(generation, call_id, RankReply(rank=rank, payload=payload))

    def refuse(self, rank: int, generation: int, call_id: int, failure: WorkerFailure) -> None:
        """A failure in the stead of one rank's answer to one call: it could not be sent, for example."""
        self._settle(generation, call_id, RankReply(rank=rank, failure=failure))

    def lose(self, rank: int, failure: WorkerFailure) -> None:
        """The rank answers no more: this failure, the first one told, is its answer to what waits and to what comes."""
        self._end([rank], lambda rank: failure)

    def close(self, failure: Callable[[int], WorkerFailure]) -> None:
        """No rank answers any more: the executor is being stopped. ``failure`` makes one for each rank."""
        self._end(self._ranks, failure)

    def _settle(self, generation: int, call_id: int, reply: RankReply) -> None:
        with self._lock:
            call = self._pending.get((generation, call_id))
            if call is None or reply.rank not in call.missing:
                self.num_dropped += 1
                return
            call.replies[reply.rank] = reply
            call.missing.discard(reply.rank)
            done = self._taken_out(call)
        if done:
            _complete(call)

    def _end(self, ranks: Sequence[int], failure: Callable[[int], WorkerFailure]) -> None:
        with self._lock:
            for rank in ranks:
                self._lost.setdefault(rank, failure(rank))
            done = [call for call in list(self._pending.values()) if self._without_the_lost(call)]
        for call in done:
            _complete(call)

    def _without_the_lost(self, call: _Pending) -> bool:
        """Answer for the lost ranks; whether the caller has to complete the call."""
        for rank in call.missing & self._lost.keys():
            call.replies[rank] = RankReply(rank=rank, failure=self._lost[rank])
        call.missing -= call.replies.keys()
        return self._taken_out(call)

    def _taken_out(self, call: _Pending) -> bool:
        """Whether nothing is missing any more, and it was us who took the call out."""
        return not call.missing and self._pending.pop((call.generation, call.call_id), None) is not None


def _complete(call: _Pending) -> None:
    replies = tuple(call.replies[rank] for rank in sorted(call.replies))
    try:
        call.future.set_result(Replies(generation=call.generation, call_id=call.call_id, replies=replies))
    except InvalidStateError:  # whoever asked has cancelled it: the answer comes too late
        return
