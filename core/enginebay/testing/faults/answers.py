"""Answers on their way from the executor to the engine: changed, held back, or kept for good."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError

from enginebay.errors import EngineDead
from enginebay.messages import RankReply, Replies, WorkerFailure

__all__ = ["Answers"]

Deliver = Callable[[], None]


class Answers:
    """Each method takes the future of a call, and returns the one that the engine is to wait for. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[tuple[Future[Replies], Future[Replies], int]] = []

    def fail(self, future: Future[Replies], rank: int, call: str) -> Future[Replies]:
        """The rank has failed the call, whatever it answers."""
        failure = WorkerFailure(
            phase=call, error_type="InjectedFault", message="the extension 'faults' fails this call", rank=rank
        )
        return _then(future, lambda inner, outer: _pass_on(inner, outer, RankReply(rank=rank, failure=failure)))

    def delay(self, future: Future[Replies], later: Callable[[Deliver], None]) -> Future[Replies]:
        """``later`` is given what delivers the answer, once it is there."""
        return _then(future, lambda inner, outer: later(lambda: _pass_on(inner, outer)))

    def drop(self, future: Future[Replies], rank: int) -> Future[Replies]:
        """The rank's answer never comes, and so the call's does not; until ``end``."""
        return _then(future, lambda inner, outer: self._keep(inner, outer, rank))

    def end(self) -> None:
        """The workers are gone: who still waits for an answer that was dropped is told so."""
        with self._lock:
            kept, self._kept = self._kept, []
        for inner, outer, rank in kept:
            kind, message = EngineDead.__name__, "the executor was stopped; the extension 'faults' dropped the answer"
            failure = WorkerFailure(phase="stop", error_type=kind, kind=kind, message=message, rank=rank)
            _pass_on(inner, outer, RankReply(rank=rank, failure=failure))

    def _keep(self, inner: Future[Replies], outer: Future[Replies], rank: int) -> None:
        with self._lock:
            self._kept.append((inner, outer, rank))


def _then(future: Future[Replies], done: Callable[[Future[Replies], Future[Replies]], None]) -> Future[Replies]:
    outer: Future[Replies] = Future()
    future.add_done_callback(lambda inner: done(inner, outer))
    return outer


def _pass_on(inner: Future[Replies], outer: Future[Replies], instead: RankReply | None = None) -> None:
    """What the call was answered, with one rank's part of it replaced."""
    try:
        error = inner.exception()
        if error is not None:
            outer.set_exception(error)
            return
        replies = inner.result()
        if instead is not None:
            told = tuple(instead if one.rank == instead.rank else one for one in replies.replies)
            replies = Replies(generation=replies.generation, call_id=replies.call_id, replies=told)
        outer.set_result(replies)
    except InvalidStateError:
        return  # whoever asked has cancelled it
