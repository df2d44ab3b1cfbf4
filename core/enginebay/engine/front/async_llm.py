"""``AsyncLLM``: an engine for programs with an event loop; any number of tasks may ask it at once."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from enginebay.engine.admission.options import RequestOptions
from enginebay.engine.client import LOOK_SECONDS
from enginebay.engine.front.async_llm_control import AsyncLLMControl
from enginebay.engine.front.front import ConfigLike, Front, Message, Prompt, Request
from enginebay.engine.parts import EngineStats
from enginebay.engine.port import EnginePort
from enginebay.engine.sinks import PendingDelta
from enginebay.errors import EnginebayError, EngineDead
from enginebay.messages import RequestOutput, SamplingParams
from enginebay.plugins import PluginHost
from enginebay.runtime import Runtime

__all__ = ["AsyncLLM", "AsyncStream"]


class AsyncLLM(AsyncLLMControl):
    """An engine in this process, stepped in a thread of its own.

    ::

        async with AsyncLLM("engine.toml") as llm:
            async for output in llm.generate("The capital of France is"):
                print(output.text, end="")

    Entering starts the engine and raises ``ConfigError`` or ``StartFailed`` when it cannot be. Without ``async with``,
    await ``start`` and ``close``; what is forgotten is closed with the object, or at the interpreter's end.
    """

    def __init__(
        self,
        config: ConfigLike = None,
        *,
        sets: Sequence[str] = (),
        runtime: Runtime | None = None,
        host: PluginHost | None = None,
    ) -> None:
        """Assigns; nothing is started. ``sets`` are ``section.key=value``. ``runtime`` and ``host`` are for tests."""
        self._open: Callable[[], Front] = lambda: Front.open(config, sets, runtime=runtime, host=host)
        self._front: Front | None = None
        self._finalizer: weakref.finalize[[], AsyncLLM] | None = None
        self._changing = asyncio.Lock()  # one start or close at a time

    @classmethod
    def connect(
        cls, address: str | None = None, *, keys: str | Path | None = None, tokenizer: str | Path | None = None
    ) -> Self:
        """The engine that runs at ``address``, as ``LLM.connect`` has it; the connection is made by ``start``."""

        def open_front() -> Front:
            from enginebay.engine.front.connect import connect

            return connect(address, keys=keys, tokenizer=tokenizer)

        made = cls()
        made._open = open_front
        return made

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the engine, off the event loop; one that runs is left as it is.

        A cancellation waits for the start to end and be undone; a second one leaves that to the thread that does it.
        """
        async with self._changing:
            if self._front is None:
                front = await _Start(self._open).front()
                self._finalizer = weakref.finalize(self, front.client.ask_to_stop)
                self._finalizer.atexit = False  # the client has its own, which waits
                self._front = front

    async def close(self) -> None:
        """Stop the engine and give everything back, as ``LLM.close`` does; idempotent.

        One that is being started is waited for. A cancellation leaves the closing to the thread that does it.
        """
        async with self._changing:
            front, self._front = self._front, None
            if front is not None:
                assert self._finalizer is not None, "it comes with the front"
                self._finalizer.detach()
                front.client.ask_to_stop()  # it ends also if the next line is cancelled before it begins
                await asyncio.to_thread(front.close)

    @property
    def in_force(self) -> dict[str, str]:
        """What was really chosen, as ``enginebay check`` prints it, with what only the workers knew."""
        return dict(self._live().in_force)

    async def stats(self) -> EngineStats:
        """How the engine stands now."""
        client = self._live().client
        answer, asked = client.ask_stats(), client.now
        waited = asyncio.wrap_future(answer)  # not in a thread: a long step would use them all up
        while not (await asyncio.wait([waited], timeout=LOOK_SECONDS))[0]:
            client.check_patience(answer, asked)
        return waited.result()

    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> AsyncStream:
        """Complete a prompt, delta by delta; with ``n`` choices each delta says of which it is.

        ``options`` are ``request_id``, ``priority``, ``tenant``, ``timeout`` (seconds from now), ``cache_salt``,
        ``extra`` (bytes by plugin name), ``adapter`` and ``traceparent``.

        The request is checked and sent when the iteration begins: ``InvalidRequest`` is raised there. Leaving the
        loop early, dropping the stream, or cancelling the task aborts the request.
        """
        front = self._live()
        return AsyncStream(self, front.client, lambda: front.request(prompt, params, **options))

    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> AsyncStream:
        """Answer a conversation by the model's chat template; the rest as in ``generate``."""
        front = self._live()
        return AsyncStream(self, front.client, lambda: front.chat_request(messages, params, **options))

    async def abort(self, request_id: str) -> None:
        """End a request; its last output has the finish reason "abort". Raises ``UnknownRequest``."""
        self._live().client.abort(request_id)

    def _live(self) -> Front:
        if self._front is None:
            raise EngineDead("the engine is not running: use 'async with AsyncLLM(…)', or await start()")
        return self._front


class _Start:
    """One start in a thread of its own. What it opens after it was given up, it closes itself, whatever then runs."""

    def __init__(self, open_front: Callable[[], Front]) -> None:
        self._open = open_front
        self._lock = threading.Lock()
        self._given_up = threading.Event()
        self._opened: Front | None = None

    async def front(self) -> Front:
        """Start, and wait for it."""
        opening = asyncio.get_running_loop().run_in_executor(None, self._run)
        try:
            front = await asyncio.shield(opening)
        except BaseException as error:
            with self._lock:
                self._given_up.set()
                opened = self._opened
            opening.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody wants to know
            if opened is not None:  # in the moment in which we were cancelled
                opened.client.ask_to_stop()
            if isinstance(error, asyncio.CancelledError):
                await asyncio.wait([opening])
                if opened is not None:
                    await asyncio.to_thread(opened.close)
            raise
        assert front is not None, "only what was given up is closed by its thread"
        return front

    def _run(self) -> Front | None:
        if self._given_up.is_set():
            return None
        front = self._open()
        with self._lock:
            if not self._given_up.is_set():
                self._opened = front
                return front
        front.close()
        return None


class AsyncStream(AsyncIterator[RequestOutput]):
    """The deltas of one request. A slow reader gets fewer and longer ones: at most one per choice is pending, no gap.

    It has one reader at a time, and may be closed by any task, which ends the reader's loop.

    It keeps its engine from being forgotten.
    """

    def __init__(self, owner: AsyncLLM, client: EnginePort, make: Callable[[], Request]) -> None:
        self._owner = owner
        self._client = client
        self._make = make
        self._request: Request | None = None
        self._sink: _AsyncSink | None = None
        self._reading = False
        self._ended = False
        self._num_ended = 0

    @property
    def request_id(self) -> str | None:
        """The request's id, once the iteration has begun."""
        return None if self._request is None else self._request.ask.request_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._ended:
            raise StopAsyncIteration
        if self._reading:
            raise RuntimeError("the stream is being read by another task already: it has one reader")
        self._reading = True
        try:
            sink = self._sink or await self._begin()
            output = await sink.next(self._client)
        except BaseException:
            self._abort()
            raise
        finally:
            self._reading = False
        if self._ended:  # closed meanwhile
            raise StopAsyncIteration
        assert self._request is not None, "what was asked comes before its answer"
        self._num_ended += output.finish_reason is not None
        self._ended = self._num_ended == self._request.ask.params.n
        return output

    def __del__(self) -> None:
        if "_ended" in self.__dict__:
            self._abort()

    async def aclose(self) -> None:
        """Abort the request, if it has not ended."""
        self._abort()

    async def _begin(self) -> _AsyncSink:
        request = self._request = await asyncio.to_thread(self._make)  # tokenizing a long text takes a while
        if self._ended:  # closed meanwhile: nothing is sent
            raise StopAsyncIteration
        sink = self._sink = _AsyncSink(asyncio.get_running_loop())
        self._client.add_request(request.ask, sink, operation=request.operation, validated=True)
        return sink

    def _abort(self) -> None:
        if not self._ended:
            self._ended = True
            if self._sink is not None and self._request is not None:
                self._client.abort_quietly(self._request.ask.request_id, self._sink)


class _AsyncSink:
    """Carries outputs from the engine's thread to the event loop: one wake-up per delta that is taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived = asyncio.Event()
        self._pending: dict[int, PendingDelta] = {}
        self._error: EnginebayError | None = None

    def put(self, output: RequestOutput) -> None:
        """Called by the engine's thread."""
        self._call(self._add, output)

    def fail(self, error: EnginebayError) -> None:
        """Called by the engine's thread."""
        self._call(self._set_error, error)

    async def next(self, client: EnginePort) -> RequestOutput:
        """The merged delta, once there is one; raises the engine's end after everything that came before it."""
        while not self._arrived.is_set():
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._arrived.wait()
            except TimeoutError:
                await asyncio.sleep(0)  # what it told last may be on its way
                if not self._arrived.is_set():
                    client.check_alive()
        if not self._pending:
            assert self._error is not None
            raise self._error
        output = self._pending.pop(next(iter(self._pending))).take()
        if not self._pending and self._error is None:
            self._arrived.clear()
        return output

    def _call(self, method: Callable[[Any], None], argument: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(method, argument)
        except RuntimeError:
            return  # the event loop is closed: nobody waits any more

    def _add(self, output: RequestOutput) -> None:
        self._pending.setdefault(output.choice, PendingDelta()).add(output)
        self._arrived.set()

    def _set_error(self, error: EnginebayError) -> None:
        self._error = error
        self._arrived.set()
