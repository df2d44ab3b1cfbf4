"""An engine of the fake runner that is served in this process, and a front end that speaks raw messages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

from enginebay.engine.front.front import Front
from enginebay.engine.service.service import EngineService
from enginebay.engine.service.welcome import Served
from enginebay.messages import AskedRequest, FromFront, Hello, SamplingParams, ToFront, Welcome
from enginebay.runfolder import RunFolder
from enginebay.transport.front_address import FRONT_NAME, FrontAddress, write_address
from enginebay.transport.front_door import FrontDoor
from enginebay.transport.front_keys import ServerKeys

DECODER = msgspec.msgpack.Decoder(ToFront)


@dataclass
class Serving:
    """A served engine."""

    front: Front
    door: FrontDoor
    service: EngineService
    stops: list[None]

    @property
    def address(self) -> str:
        return str(self.door.address)

    @property
    def num_unfinished(self) -> int:
        return self.front.client.stats().unfinished


@contextlib.contextmanager
def serve(config: dict[str, Any], *, tcp: ServerKeys | None = None, **served: Any) -> Iterator[Serving]:
    """An engine of this config, at a socket in a run folder, or, with keys, on a free port."""
    with contextlib.ExitStack() as stack:
        front = Front.open(config)
        stack.callback(front.close)
        if tcp is None:
            folder = RunFolder.make()
            stack.callback(folder.close)
            door = FrontDoor(FrontAddress(path=folder.path / FRONT_NAME))
            write_address(folder.path, door.address)
        else:
            door = FrontDoor(FrontAddress(host="127.0.0.1"), tcp)
        stack.callback(door.close)
        stops: list[None] = []
        told = Served(model=front.model, tokenizer=None, in_force=front.in_force, limits=front.client.limits, **served)
        service = EngineService(front.client, door, told, front.runtime, on_stop=lambda: stops.append(None))
        service.start()
        stack.callback(service.close)
        yield Serving(front, door, service, stops)


class RawFront:
    """A front end without any manners: sends what it is told to, and reads when it is told to."""

    def __init__(self, address: str, *, buffers: int | None = None) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        if buffers is not None:
            self.socket.setsockopt(zmq.RCVHWM, buffers)
        self.socket.connect(address)

    def __enter__(self) -> RawFront:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()
        self.context.term()

    def say(self, *messages: FromFront) -> None:
        for message in messages:
            self.socket.send(msgspec.msgpack.encode(message))

    def hear(self, *kinds: type[Any], seconds: float = 30.0) -> Any:
        """The next message of these kinds; others are passed over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.socket.poll(100):
                message = DECODER.decode(self.socket.recv())
                if isinstance(message, kinds):
                    return message
        raise AssertionError(f"no {kinds} within {seconds} s")

    def hello(self) -> Welcome:
        self.say(Hello())
        welcome: Welcome = self.hear(Welcome)
        return welcome


def request(request_id: str, prompt: str, **params: Any) -> AskedRequest:
    """A request in the fake runner's tokens: bytes."""
    return AskedRequest(
        request_id=request_id,
        prompt_token_ids=tuple(prompt.encode()),
        params=SamplingParams(**params),
        operation="text_completion",
    )


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to be so"
        time.sleep(0.01)
