"""One front end as the engine sees it: its connection, if it has one, and its requests, which nobody else can name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from enginebay.engine.admission.admit import Ask
from enginebay.engine.port import EnginePort
from enginebay.engine.service.streams import Stream
from enginebay.engine.service.words import ask_of, told
from enginebay.errors import DuplicateRequest, EnginebayError
from enginebay.messages import Failed, Submit, Taken, ToFront
from enginebay.transport.front_door import FrontDoor, Peer, Sent

__all__ = ["Session"]

_ENCODER: Final = msgspec.msgpack.Encoder()


class Session:
    """The requests of one front end. For one thread; ``on_news`` is called with streams from any."""

    def __init__(
        self,
        name: str,
        number: int,
        peer: Peer,
        *,
        door: FrontDoor,
        port: EnginePort,
        on_news: Callable[[Session, Stream], None],
        now: float,
    ) -> None:
        """``name`` is the secret by which it is taken up again; ``number`` tells its requests from others'."""
        self.name = name
        self.peer: Peer | None = peer
        self.lost_at: float | None = None  # set by the service, which has the clock
        self.heard_at = now
        self.is_blocked = False
        self._number = number
        self._door = door
        self._port = port
        self._on_news = on_news
        self._streams: dict[str, Stream] = {}

    @property
    def known(self) -> tuple[str, ...]:
        """The ids of the requests that are not delivered to their ends."""
        return tuple(self._streams)

    @property
    def num_unfinished(self) -> int:
        """Requests that the engine works on."""
        return sum(not stream.is_finished for stream in self._streams.values())

    @property
    def waits_for_reader(self) -> bool:
        """Whether the front end has something to acknowledge."""
        return any(stream.waits_for_reader for stream in self._streams.values())

    def submit(self, submit: Submit) -> None:
        """Hand the requests to the engine as one; one that is refused fails alone."""
        good: dict[str, list[tuple[Ask, Stream]]] = {}
        for request in submit.requests:
            if request.request_id in self._streams:
                error: EnginebayError = DuplicateRequest(
                    f"request id {request.request_id!r:.300} is in use by an unfinished request: "
                    "choose another, or abort that one",
                    param="request_id",
                )
                self.send(_failed(request.request_id, error))  # no stream of its own: the id's is another's
                continue
            try:
                ask = self._port.validate(ask_of(request))
            except EnginebayError as refusal:
                self._open(request.request_id, 1).fail(refusal)
                continue
            stream = self._open(ask.request_id, ask.params.n)
            good.setdefault(request.operation, []).append((replace(ask, request_id=stream.engine_id), stream))
        for operation, asks in good.items():
            try:
                self._port.add_requests(asks, operation=operation, validated=True)
            except EnginebayError as error:
                for _, stream in asks:
                    stream.fail(copy.copy(error))

    def abort(self, request_id: str) -> None:
        """End a request, if it has not ended."""
        if (stream := self._streams.get(request_id)) is not None:
            self._port.abort_quietly(stream.engine_id, stream)

    def taken(self, taken: Taken) -> None:
        """Frames have arrived: there is room for others."""
        if (stream := self._streams.get(taken.request_id)) is not None:
            stream.taken(taken.number)
            self.pump(stream)

    def pump(self, stream: Stream) -> None:
        """Send what a stream has and there is room for; one that is delivered is forgotten."""
        if self._streams.get(stream.request_id) is not stream:
            return
        if self.peer is not None and not stream.pump(self._send_bytes):
            self.is_blocked = self.peer is not None
        if stream.is_delivered:
            del self._streams[stream.request_id]

    def pump_all(self) -> None:
        """The same for every stream."""
        self.is_blocked = False
        for stream in tuple(self._streams.values()):
            self.pump(stream)

    def send(self, message: ToFront) -> None:
        """Send a message that is no part of a stream; what cannot go now is lost."""
        self._send_bytes(_ENCODER.encode(message))

    def take_up(self, peer: Peer, arrived: Mapping[str, int]) -> None:
        """The front end is back by another connection, with what had arrived by the old one."""
        self.peer, self.lost_at = peer, None
        for request_id, stream in tuple(self._streams.items()):
            if request_id in arrived:
                stream.restart(arrived[request_id])
            elif stream.is_finished:  # it had come to its end there
                del self._streams[request_id]
            else:  # it never knew that it was sent
                self.abort(request_id)

    def end(self) -> None:
        """Abort what is unfinished: nobody is there to read it."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            self._port.abort_quietly(stream.engine_id, stream)

    def _open(self, request_id: str, n: int) -> Stream:
        stream = Stream(
            request_id, f"{self._number}/{request_id}", n=n, on_news=lambda stream: self._on_news(self, stream)
        )
        self._streams[request_id] = stream
        return stream

    def _send_bytes(self, frame: bytes) -> bool:
        if self.peer is None:
            return False
        sent = self._door.send(self.peer, frame)
        if sent is Sent.GONE:
            self.peer = None
        return sent is Sent.QUEUED


def _failed(request_id: str, error: EnginebayError) -> Failed:
    kind, message, param = told(error)
    return Failed(number=0, request_id=request_id, kind=kind, message=message, param=param)
