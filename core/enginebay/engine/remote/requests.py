"""What a front end waits for from an engine in another process: its requests and its questions, and what is to be sent.

Shared between the callers' threads and the one that has the socket, under one lock; sinks are called outside of it.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from enginebay.engine.admission.admit import Ask
from enginebay.engine.loop import Sink
from enginebay.engine.parts import EngineStats
from enginebay.engine.service.words import error_of
from enginebay.errors import DuplicateRequest, EnginebayError, EngineDead, WorkerHung
from enginebay.messages import (
    AbortRequest,
    AskControl,
    AskStats,
    CheckRequest,
    Delta,
    Failed,
    FromFront,
    Refusal,
    Stats,
    Submit,
    Taken,
)
from enginebay.messages import Answer as Answered

__all__ = ["RemoteRequests"]

T = TypeVar("T")

_ACKNOWLEDGE_BYTES: Final = 32 * 1024
_STATS: Final = msgspec.msgpack.Decoder(EngineStats)


class _Waiting:
    """One request: where its outputs go, and how far they have come."""

    def __init__(self, request_id: str, n: int, sink: Sink) -> None:
        self.request_id, self.unfinished, self.sink = request_id, n, sink
        self.arrived = 0
        self.bytes_to_acknowledge = 0
        self.is_aborted = False


@dataclass(frozen=True)
class _Question:
    """Who waits for an answer, by which line it was asked, and until when it makes sense to wait."""

    answer: Future[Any]
    is_control: bool
    deadline: float | None


class RemoteRequests:
    """Everything is thread-safe. ``control`` and ``data`` are what is to be sent by each line, oldest first."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a dropped stream may abort from within any allocation
        self._live: dict[str, _Waiting] = {}
        self._questions: dict[int, _Question] = {}
        self._num_asked = 0
        self._end: EnginebayError | None = None
        self.data: deque[FromFront] = deque()
        self.control: deque[FromFront] = deque()

    def end(self) -> EnginebayError | None:
        """The engine's end, an error of the caller's own; None while it lives."""
        return None if self._end is None else copy.copy(self._end)

    @property
    def is_waited_for(self) -> bool:
        """Whether anybody waits for the engine."""
        return bool(self._live or self._questions)

    def open(self, asks: Sequence[tuple[Ask, Sink]], messages: Sequence[Submit]) -> None:
        """Wait for these requests, and queue them. Raises ``DuplicateRequest``, or the engine's end; then none is."""
        with self._lock:
            if self._end is not None:
                raise copy.copy(self._end)
            seen: set[str] = set()
            for ask, _ in asks:
                if ask.request_id in self._live or ask.request_id in seen:
                    raise DuplicateRequest(
                        f"request id {ask.request_id!r} is in use by an unfinished request: "
                        "choose another, or abort that one",
                        param="request_id",
                    )
                seen.add(ask.request_id)
            for ask, sink in asks:
                self._live[ask.request_id] = _Waiting(ask.request_id, ask.params.n, sink)
            self.data.extend(messages)

    def abort(self, request_id: str, message: AbortRequest, sink: Sink | None = None) -> bool:
        """Queue the end of a request, of this sink if one is given; whether there is such a request."""
        with self._lock:
            waiting = self._live.get(request_id)
            if waiting is None or (sink is not None and waiting.sink is not sink):
                return False
            waiting.is_aborted = True
            self.data.append(message)
            return True

    def question(
        self,
        make: Callable[[int], AskControl | AskStats | CheckRequest],
        kind: type[T],
        deadline: float | None = None,
    ) -> Future[T]:
        """Queue a question; the future has its answer, or after ``deadline`` an error. Raises the engine's end."""
        answer: Future[T] = Future()
        with self._lock:
            if self._end is not None:
                raise copy.copy(self._end)
            self._num_asked += 1
            message = make(self._num_asked)
            is_control = not isinstance(message, CheckRequest)
            self._questions[self._num_asked] = _Question(answer, is_control, deadline)
            (self.control if is_control else self.data).append(message)
        return answer

    def resumed(self, known: Sequence[str]) -> None:
        """The connection is new, and these the engine still has: the others it never got, or gave up."""
        with self._lock:
            gone = [waiting for name, waiting in self._live.items() if name not in set(known)]
            unsent = {
                one.request_id for message in self.data if isinstance(message, Submit) for one in message.requests
            }
            gone = [waiting for waiting in gone if waiting.request_id not in unsent]
            for waiting in gone:
                del self._live[waiting.request_id]
            self.data.extend(AbortRequest(request_id=one.request_id) for one in self._live.values() if one.is_aborted)
        for waiting in gone:
            waiting.sink.fail(EngineDead("the connection was lost while the request was on its way: send it again"))

    def arrived(self) -> dict[str, int]:
        """The last frame that came, by request."""
        with self._lock:
            return {name: waiting.arrived for name, waiting in self._live.items()}

    def take(self, message: Delta | Failed, size: int) -> None:
        """Hand a frame to whoever waits for it; one that came before is passed over."""
        request_id = message.output.request_id if isinstance(message, Delta) else message.request_id
        with self._lock:
            waiting = self._live.get(request_id)
            if waiting is None or message.number != waiting.arrived + 1:
                return
            waiting.arrived = message.number
            waiting.bytes_to_acknowledge += size
            finished = True
            if isinstance(message, Delta):
                waiting.unfinished -= message.output.finish_reason is not None
                finished = waiting.unfinished <= 0
            if finished:
                del self._live[request_id]
            if finished or waiting.bytes_to_acknowledge >= _ACKNOWLEDGE_BYTES:
                self._acknowledge(waiting)
        if isinstance(message, Delta):
            waiting.sink.put(message.output)
        else:
            waiting.sink.fail(error_of(message.kind, message.message, message.param))

    def acknowledge_all(self) -> None:
        """Say of every request what has arrived, so that the engine sees that somebody reads."""
        with self._lock:
            for waiting in self._live.values():
                if waiting.bytes_to_acknowledge:
                    self._acknowledge(waiting)

    def answer(self, message: Answered | Stats | Refusal) -> None:
        """Hand an answer to who asked."""
        with self._lock:
            asked = self._questions.pop(message.number, None)
        if asked is None:
            return
        try:
            if isinstance(message, Refusal):
                asked.answer.set_exception(error_of(message.kind, message.message, message.param))
            else:
                asked.answer.set_result(_STATS.decode(message.stats) if isinstance(message, Stats) else message.done)
        except InvalidStateError:
            return  # who asked has given up

    def fail_questions(self, error: EnginebayError, *, is_control: bool) -> None:
        """The line by which these were asked is down."""
        with self._lock:
            lost = self._pop_questions(lambda _, one: one.is_control is is_control)
            if is_control:
                self.control.clear()
        _fail(lost, error)

    def fail_overdue(self, now: float, who: str) -> None:
        """An answer that has not come in its time will not come."""
        with self._lock:
            overdue = self._pop_questions(lambda _, one: one.deadline is not None and now > one.deadline)
        _fail(
            overdue,
            WorkerHung(
                f"the engine ({who}) has not answered in the time that it may take for this: its status tells what "
                "it does; whether it has done what was asked is not known"
            ),
        )

    def refuse(self, message: FromFront, error: EnginebayError) -> None:
        """A message cannot be sent: who waits for what would come of it is told, and nobody else is harmed."""
        if isinstance(message, Submit):
            with self._lock:
                names = [request.request_id for request in message.requests]
                waiting = [self._live.pop(name) for name in names if name in self._live]
            for one in waiting:
                one.sink.fail(copy.copy(error))
        elif isinstance(message, AskControl | AskStats | CheckRequest):
            with self._lock:
                asked = self._pop_questions(lambda number, _: number == message.number)
            _fail(asked, error)

    def die(self, error: EnginebayError) -> None:
        """The engine, or the connection, has ended: everybody who waits is told, once; the first end counts."""
        with self._lock:
            if self._end is not None:
                return
            self._end = error
            live, self._live = self._live, {}
            self.data.clear()
        for waiting in live.values():
            waiting.sink.fail(copy.copy(error))
        for is_control in (False, True):
            self.fail_questions(error, is_control=is_control)

    def _pop_questions(self, is_meant: Callable[[int, _Question], bool]) -> list[_Question]:
        numbers = [number for number, one in self._questions.items() if is_meant(number, one)]
        return [self._questions.pop(number) for number in numbers]

    def _acknowledge(self, waiting: _Waiting) -> None:
        waiting.bytes_to_acknowledge = 0
        self.data.append(Taken(request_id=waiting.request_id, number=waiting.arrived))


def _fail(questions: Sequence[_Question], error: EnginebayError) -> None:
    """Tell each who still waits, with an error of its own."""
    for one in questions:
        if one.answer.set_running_or_notify_cancel():
            one.answer.set_exception(copy.copy(error))
