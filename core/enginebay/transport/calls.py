"""Calls that wait for their answers: what the parent half of every executor of several workers keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

from enginebay.messages import Envelope, RankReply, Replies, WorkerFailure

__all__ = ["PendingCalls"]


@dataclass(slots=True)
class _Pending:
    generation: int
    call_id: int
    missing: set[int]
    replies: dict[int, RankReply] = field(default_factory=dict)
    future: Future[Replies] = field(default_factory=Future)


class PendingCalls:
    """The calls on one group's workers that some rank has not answered. Thread-safe.

    ``open`` before the call is sent; its future completes when every rank of the envelope has answered (``answer``) or
    is lost (``lose``). A rank that is lost answers every later call with the same failure at once. Futures complete
    outside the lock, in the thread whose answer was the last.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = tuple(ranks)
        self._lock = threading.Lock()
        self._pending: dict[tuple[int, int], _Pending] = {}
        self._lost: dict[int, WorkerFailure] = {}
        self.num_dropped = 0
        """Answers that nobody waited for: late ones, and those of an older generation."""

    def open(self, envelope: Envelope) -> Future[Replies]:
        """Expect an answer from each rank that the envelope names (None: from all)."""
        asked = self._ranks if envelope.ranks is None else envelope.ranks
        call = _Pending(envelope.generation, envelope.call_id, set(asked))
        with self._lock:
            for rank in call.missing & self._lost.keys():
                call.replies[rank] = RankReply(rank=rank, failure=self._lost[rank])
            call.missing -= call.replies.keys()
            if call.missing:
                self._pending[call.generation, call.call_id] = call
        if not call.missing:
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

    def waits_for(self) -> tuple[int, ...]:
        """The ranks that have not answered the oldest call that waits; none: nothing waits."""
        with self._lock:
            oldest = next(iter(self._pending.values()), None)
            return () if oldest is None else tuple(sorted(oldest.missing))

    def _settle(self, generation: int, call_id: int, reply: RankReply) -> None:
        with self._lock:
            call = self._pending.get((generation, call_id))
            if call is None or reply.rank not in call.missing:
                self.num_dropped += 1
                return
            call.missing.discard(reply.rank)
            call.replies[reply.rank] = reply
            if call.missing:
                return
            del self._pending[generation, call_id]
        _complete(call)

    def _end(self, ranks: Sequence[int], failure: Callable[[int], WorkerFailure]) -> None:
        with self._lock:
            for rank in ranks:
                self._lost.setdefault(rank, failure(rank))
            done = []
            for key, call in list(self._pending.items()):
                for rank in call.missing & self._lost.keys():
                    call.replies[rank] = RankReply(rank=rank, failure=self._lost[rank])
                call.missing -= call.replies.keys()
                if not call.missing:
                    done.append(self._pending.pop(key))
        for call in done:
            _complete(call)


def _complete(call: _Pending) -> None:
    replies = tuple(call.replies[rank] for rank in sorted(call.replies))
    try:
        call.future.set_result(Replies(generation=call.generation, call_id=call.call_id, replies=replies))
    except InvalidStateError:  # whoever asked has cancelled it: the answer comes too late
        return
