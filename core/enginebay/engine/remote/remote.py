"""The client of an engine in another process: an ``EnginePort`` over a socket, with a thread of its own for it.

What is asked is queued and never waits; what comes is handed to sinks in the thread. The engine's end is told to each
request once: as the engine said it, or, when it could say nothing, as what was seen of it.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Final

from enginebay.engine.admission.admit import AdmissionLimits, Ask, check_id, check_size, validate
from enginebay.engine.collector import LOOK_SECONDS
from enginebay.engine.control.tensors import Command
from enginebay.engine.loop import Sink
from enginebay.engine.parts import EngineStats
from enginebay.engine.remote.link import RemoteLink
from enginebay.engine.remote.requests import RemoteRequests
from enginebay.engine.service.words import asked, limits_of
from enginebay.engine.spans import TEXT_COMPLETION
from enginebay.errors import EngineDead, InvalidRequest, UnknownRequest, WorkerHung
from enginebay.messages import (
    AbortRequest,
    AskControl,
    AskedRequest,
    AskStats,
    CallWorkers,
    CheckRequest,
    Control,
    ControlDone,
    Drain,
    ReadStatus,
    RestartWorkers,
    SamplingParams,
    Scale,
    Submit,
    Swap,
    Welcome,
)
from enginebay.runtime import Runtime
from enginebay.transport.front_address import FrontAddress
from enginebay.transport.front_keys import ClientKeys

__all__ = ["CONNECT_SECONDS", "RemoteClient"]

CONNECT_SECONDS: Final = 60.0
"""How long an engine may take to answer the first message: it listens before it has loaded its model."""

_SUBMIT_BYTES: Final = 16 * 1024 * 1024
_CHECK_SECONDS: Final = 30.0


class RemoteClient:
    """One front end's session with one engine. Thread-safe; ``stop`` leaves the engine running."""

    def __init__(self, link: RemoteLink, requests: RemoteRequests, welcome: Welcome, runtime: Runtime) -> None:
        """Use ``connect``."""
        self._link = link
        self._requests = requests
        self.welcome = welcome
        self._runtime = runtime
        self._limits = limits_of(welcome.limits)
        self._pid = os.getpid()
        atexit.register(self.stop)

    @classmethod
    def connect(
        cls, address: str, runtime: Runtime, *, keys: Path | None = None, timeout: float = CONNECT_SECONDS
    ) -> RemoteClient:
        """Say hello to the engine at ``address``; ``keys`` is the client's part of its key file, for TCP.

        Raises ``ConfigError`` for a bad address or keys, ``EngineDead`` when no engine answers within ``timeout``
        seconds.
        """
        where = FrontAddress.parse(address)
        requests = RemoteRequests()
        link = RemoteLink(where, None if keys is None else ClientKeys.read(keys), requests, runtime.clock)
        link.start(runtime.spawner)
        try:
            welcome = runtime.wait(link.welcomed, runtime.clock.now() + timeout)
        except TimeoutError:
            link.close()
            raise EngineDead(
                f"what listens at {where} has not answered for {timeout:g} s: the engine is starting, stopped, or none"
            ) from None
        except BaseException:
            link.close()
            raise
        return cls(link, requests, welcome, runtime)

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked child: the connection is its parent's."""
        return os.getpid() == self._pid

    @property
    def now(self) -> float:
        """Seconds of this process's clock."""
        return self._runtime.clock.now()

    @property
    def in_force(self) -> dict[str, str]:
        """What was in force when the connection was made."""
        return dict(self.welcome.in_force)

    @property
    def limits(self) -> AdmissionLimits:
        """What a request is checked against here; the engine checks it again."""
        return self._limits

    def use_bad_words(self, bad_word_ids: Callable[[str], tuple[tuple[int, ...], ...]]) -> None:
        """Check bad words with this front end's tokenizer, which is the engine's."""
        self._limits = replace(self._limits, bad_word_ids=bad_word_ids)

    def check_alive(self) -> None:
        """Raise the engine's end when nobody is there to answer."""
        if not self.is_of_this_process:
            raise EngineDead(
                f"the connection to the engine is of process {self._pid}, and this process was forked from it, which "
                "takes none of its threads along: connect here, or fork before the first connection is made"
            )
        if (end := self._requests.end()) is not None:
            raise end

    def validate(self, ask: Ask) -> Ask:
        """The request in plain values, or what is wrong with it; the engine is asked about its plugins' ``extra``."""
        ask = validate(ask, self._limits)
        if any(name in ask.extra for name in self.welcome.limits.extras):
            request = asked(ask, TEXT_COMPLETION)
            answer = self._requests.question(lambda number: CheckRequest(number=number, request=request), ControlDone)
            self._link.wake()
            try:
                self._runtime.wait(answer, self.now + _CHECK_SECONDS)
            except TimeoutError:
                self.check_alive()
                raise EngineDead(f"the engine has not said for {_CHECK_SECONDS:g} s whether it takes this") from None
        return ask

    def check_size(self, texts: Iterable[str], params: SamplingParams | None) -> None:
        """Raise ``RequestTooLong`` for text that is not worth tokenizing."""
        check_size(texts, params, self._limits)

    def add_request(self, ask: Ask, sink: Sink, *, operation: str = TEXT_COMPLETION, validated: bool = False) -> None:
        """Send a request; its outputs go to ``sink``. Raises what is wrong with it, or the engine's end."""
        self.add_requests([(ask, sink)], operation=operation, validated=validated)

    def add_requests(
        self, asks: Sequence[tuple[Ask, Sink]], *, operation: str = TEXT_COMPLETION, validated: bool = False
    ) -> None:
        """Send several as one; a very large batch goes as several."""
        if not validated:
            asks = [(self.validate(ask), sink) for ask, sink in asks]
        self.check_alive()
        messages = [Submit(requests=part) for part in _parts([asked(ask, operation) for ask, _ in asks])]
        self._requests.open(asks, messages)
        self._link.wake()

    def abort(self, request_id: str) -> None:
        """End a request of this client. Raises ``UnknownRequest``."""
        check_id(request_id)
        self.check_alive()
        if not self._requests.abort(request_id, AbortRequest(request_id=request_id)):
            raise UnknownRequest(f"no unfinished request has the id {request_id!r}", param="request_id")
        self._link.wake()

    def abort_quietly(self, request_id: str, sink: Sink) -> None:
        """End the request of this id whose outputs go to ``sink``, if there is one."""
        if self.is_of_this_process:
            self._requests.abort(request_id, AbortRequest(request_id=request_id), sink)
            self._link.wake()

    def stats(self) -> EngineStats:
        """How the engine stands; waits for a step that runs. Raises the engine's end, or ``WorkerHung``."""
        answer, since = self.ask_stats(), self.now
        while True:
            try:
                return self._runtime.wait(answer, self.now + LOOK_SECONDS)
            except TimeoutError:
                self.check_patience(answer, since)

    def ask_stats(self) -> Future[EngineStats]:
        """The same without waiting. Whoever waits calls ``check_patience`` every ``LOOK_SECONDS``."""
        self.check_alive()
        answer = self._requests.question(lambda number: AskStats(number=number), EngineStats)
        self._link.wake()
        return answer

    def check_patience(self, answer: Future[EngineStats], asked: float) -> None:
        """Raise when an answer that was asked for at ``asked`` will not come."""
        if answer.done():
            return
        self.check_alive()
        if self.now - asked > self.welcome.patience:
            raise WorkerHung(
                f"the engine (pid {self.welcome.pid}) has not said how it stands for {self.welcome.patience:g} s: a "
                "step, or the scheduler, does not come to its end ([deadlines] step)"
            )

    def control(self, command: Command) -> Future[ControlDone]:
        """Ask for something beside requests. The future has the answer, or an error of its own."""
        self.check_alive()
        if not isinstance(command, Control):
            raise InvalidRequest(
                "tensors do not cross to an engine in another process: save them to a folder that its workers can "
                "read, and update the weights from that path",
                param="tensors",
            )
        deadline = self.now + self._patience_with(command)
        answer = self._requests.question(
            lambda number: AskControl(number=number, command=command), ControlDone, deadline
        )
        self._link.wake()
        return answer

    def _patience_with(self, command: Control) -> float:
        """Seconds after which its answer will not come."""
        if isinstance(command, ReadStatus):
            return self.welcome.patience
        if isinstance(command, Swap | Scale | RestartWorkers):
            return max(self.welcome.change_patience, self.welcome.command_patience)
        own = command.timeout if isinstance(command, Drain | CallWorkers) else None
        return self.welcome.command_patience + self.welcome.groups * (own or 0.0)

    def ask_to_stop(self) -> None:
        """Leave, and wait for nothing: from any thread, at any time."""
        if self.is_of_this_process:
            self._link.leave()

    def stop(self) -> None:
        """Leave the engine, which goes on running; what is unfinished of this client is aborted there. Idempotent."""
        if self.is_of_this_process:
            atexit.unregister(self.stop)
            self._requests.die(EngineDead("the connection to the engine is closed; make a new one"))
            self._link.close()


def _parts(requests: Sequence[AskedRequest]) -> list[tuple[AskedRequest, ...]]:
    """The batch in messages that the engine takes; a token is at most five bytes there."""
    parts: list[tuple[AskedRequest, ...]] = []
    part: list[AskedRequest] = []
    size = 0
    for request in requests:
        part.append(request)
        size += 5 * len(request.prompt_token_ids) + 4096
        if size > _SUBMIT_BYTES:
            parts.append(tuple(part))
            part, size = [], 0
    return [*parts, tuple(part)] if part else parts
