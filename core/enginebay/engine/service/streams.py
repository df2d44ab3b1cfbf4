"""What one front end is sent of its requests: numbered frames, a bounded number of bytes under way, and no gap.

A stream has at most ``WINDOW_BYTES`` on their way to its reader; of what comes meanwhile, one merged delta per choice
is kept, and cut into frames when there is room. Frames that were not acknowledged are kept too, and sent again when the
front end comes back by another connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from enginebay.engine.service.words import told
from enginebay.engine.sinks import PendingDelta
from enginebay.errors import EnginebayError
from enginebay.messages import Delta, Failed, RequestOutput, ToFront

__all__ = ["FRAME_BYTES", "WINDOW_BYTES", "Stream", "frames_of"]

WINDOW_BYTES: Final = 256 * 1024
"""Under way to one reader of one request."""

FRAME_BYTES: Final = 32 * 1024
"""A longer delta is cut, where it has more than one token to be cut at."""

_ENCODER: Final = msgspec.msgpack.Encoder()

Send = Callable[[bytes], bool]
"""Hands a frame to the socket; False: not now."""


class Stream:
    """The sink of one request of one session. ``put`` and ``fail`` may come from any thread, all else from one."""

    def __init__(self, request_id: str, engine_id: str, *, n: int, on_news: Callable[[Stream], None]) -> None:
        """``request_id`` is the front end's, ``engine_id`` the one that the engine knows; of ``n`` choices."""
        self.request_id = request_id
        self.engine_id = engine_id
        self._on_news = on_news
        self._news: deque[RequestOutput | EnginebayError] = deque()
        self._unfinished = n
        self._pending: dict[int, PendingDelta] = {}
        self._failure: EnginebayError | None = None
        self._cut: deque[RequestOutput | EnginebayError] = deque()
        self._again: deque[tuple[int, bytes]] = deque()
        self._under_way: deque[tuple[int, bytes]] = deque()
        self._bytes_under_way = 0
        self._last_number = 0

    def put(self, output: RequestOutput) -> None:
        """A delta of the request."""
        self._news.append(output)
        self._on_news(self)

    def fail(self, error: EnginebayError) -> None:
        """The request's end, before its time."""
        self._news.append(error)
        self._on_news(self)

    @property
    def is_finished(self) -> bool:
        """Whether the engine has said the last word on it."""
        self._absorb()
        return self._unfinished <= 0

    @property
    def is_delivered(self) -> bool:
        """Whether the front end has all of it."""
        return self.is_finished and not (self._has_more() or self.waits_for_reader)

    @property
    def waits_for_reader(self) -> bool:
        """Whether something is under way, and not acknowledged."""
        return bool(self._under_way or self._again)

    def pump(self, send: Send) -> bool:
        """Send what there is room for; whether the socket took all that it was offered."""
        self._absorb()
        while self._again:
            if not send(self._again[0][1]):
                return False
            self._under_way.append(self._again.popleft())
        while self._bytes_under_way <= WINDOW_BYTES - FRAME_BYTES and self._has_more():
            frame = _ENCODER.encode(self._first())
            if not send(frame):
                return False
            self._cut.popleft()
            self._last_number += 1
            self._bytes_under_way += len(frame)
            self._under_way.append((self._last_number, frame))
        return True

    def taken(self, number: int) -> None:
        """The front end has every frame up to this one."""
        for queue in (self._under_way, self._again):
            while queue and queue[0][0] <= number:
                self._bytes_under_way -= len(queue.popleft()[1])

    def restart(self, arrived: int) -> None:
        """The connection was lost after this frame had arrived: the rest goes again."""
        self._again.extendleft(reversed(self._under_way))
        self._under_way.clear()
        self.taken(arrived)

    def _absorb(self) -> None:
        while self._news:
            news = self._news.popleft()
            if isinstance(news, EnginebayError):
                self._failure, self._unfinished = news, 0
            else:
                output = msgspec.structs.replace(news, request_id=self.request_id)
                self._pending.setdefault(output.choice, PendingDelta()).add(output)
                self._unfinished -= output.finish_reason is not None

    def _has_more(self) -> bool:
        """Whether there is something to send, which then stands first in ``_cut``."""
        if not self._cut and self._pending:
            self._cut.extend(frames_of(self._pending.pop(next(iter(self._pending))).take()))
        if not self._cut and self._failure is not None:
            self._cut.append(self._failure)
            self._failure = None
        return bool(self._cut)

    def _first(self) -> ToFront:
        first, number = self._cut[0], self._last_number + 1
        if isinstance(first, RequestOutput):
            return Delta(number=number, output=first)
        kind, message, param = told(first)
        return Failed(number=number, request_id=self.request_id, kind=kind, message=message, param=param)


def frames_of(output: RequestOutput) -> Iterator[RequestOutput]:
    """The delta in parts of about ``FRAME_BYTES``: first the prompt's log-probabilities, then tokens; text comes last.

    Joined again, they are the same delta.
    """
    size = len(_ENCODER.encode(output))
    if size <= FRAME_BYTES:
        yield output
        return
    head = RequestOutput(request_id=output.request_id, choice=output.choice, offset=output.offset)
    count = -(-size // FRAME_BYTES)
    for part in _parts(len(output.prompt_logprobs), count):
        yield msgspec.structs.replace(head, prompt_logprobs=output.prompt_logprobs[part])
    text = 0
    for part in _parts(len(output.token_ids), count):
        if part.stop >= len(output.token_ids):  # the last one has the rest
            yield msgspec.structs.replace(
                output,
                offset=output.offset + part.start,
                token_ids=output.token_ids[part],
                logprobs=output.logprobs[part],
                prompt_logprobs=(),
                text=output.text[text:],
            )
            return
        upto = len(output.text) * part.start // max(1, len(output.token_ids))  # behind the tokens, as text may be
        yield msgspec.structs.replace(
            head,
            offset=output.offset + part.start,
            token_ids=output.token_ids[part],
            logprobs=output.logprobs[part],
            text=output.text[text:upto],
        )
        text = upto
    yield msgspec.structs.replace(output, prompt_logprobs=())


def _parts(length: int, count: int) -> Iterator[slice]:
    step = max(1, -(-length // count))
    for start in range(0, length, step):
        yield slice(start, start + step)
