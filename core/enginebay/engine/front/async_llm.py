"""``AsyncLLM``: an engine for programs with an event loop; any number of tasks may ask it at once."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from enginebay.engine.admission.options import RequestOptions
from enginebay.engine.collector import LOOK_SECONDS
from enginebay.engine.front.async_llm_control import AsyncLLMControl
from enginebay.engine.front.async_stream import AsyncStream
from enginebay.engine.front.front import ConfigLike, Front, Message, Prompt
from enginebay.engine.parts import EngineStats
from enginebay.errors import EngineDead
from enginebay.messages import SamplingParams
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
        return self._live().in_force

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
