"""``LLM``: an engine for programs without an event loop."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, cast

from enginebay.engine.admission.options import BatchOptions, RequestOptions
from enginebay.engine.collector import Collector
from enginebay.engine.front.answers import Choice, Completion, completion, lost, refusal
from enginebay.engine.front.bar import answers_bar
from enginebay.engine.front.front import ConfigLike, Front, Message, Prompt, Request, each_request
from enginebay.engine.front.llm_control import LLMControl
from enginebay.engine.front.stream import Stream
from enginebay.engine.parts import EngineStats
from enginebay.errors import EnginebayError, EngineDead, InvalidRequest
from enginebay.messages import RequestOutput, SamplingParams
from enginebay.plugins import PluginHost
from enginebay.runtime import Runtime

__all__ = ["LLM", "Choice", "Completion", "Stream"]

T = TypeVar("T")


class LLM(LLMControl):
    """An engine in this process, or, by ``LLM.connect``, in another. Thread-safe.

    ::

        with LLM("engine.toml", sets=["scheduler.max_num_seqs=8"]) as llm:
            print(llm.generate("The capital of France is")[0].text)

    Without ``with``, call ``close``; what is forgotten is closed with the object, or at the interpreter's end.
    Raises ``ConfigError`` or ``StartFailed`` when the engine cannot be started.
    """

    def __init__(
        self,
        config: ConfigLike = None,
        *,
        sets: Sequence[str] = (),
        runtime: Runtime | None = None,
        host: PluginHost | None = None,
    ) -> None:
        """Start the engine; ``sets`` are ``section.key=value``. ``runtime`` and ``host`` are for tests."""
        self._own(Front.open(config, sets, runtime=runtime, host=host))

    @classmethod
    def connect(
        cls, address: str | None = None, *, keys: str | Path | None = None, tokenizer: str | Path | None = None
    ) -> Self:
        """The engine that ``enginebay up`` runs at ``address``; None: the only one of this user. ``close`` leaves it.

        ``keys`` is the client's part of its key file, for TCP; ``tokenizer`` a folder or file with its tokenizer, where
        its own cannot be read. Raises ``ConfigError``, ``EngineDead`` or ``ModelError``.
        """
        from enginebay.engine.front.connect import connect

        made = cls.__new__(cls)
        made._own(connect(address, keys=keys, tokenizer=tokenizer))
        return made

    def _own(self, front: Front) -> None:
        self._front = front
        self._finalizer = weakref.finalize(self, front.client.ask_to_stop)
        self._finalizer.atexit = False  # the client has its own, which waits

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine and give everything back; idempotent.

        Bounded by ``[deadlines] stop``, once for all of it, and a few seconds to tell everybody and export the last
        spans.
        """
        self._finalizer.detach()
        self._front.close()

    @property
    def in_force(self) -> dict[str, str]:
        """What was really chosen, as ``enginebay check`` prints it, with what only the workers knew."""
        return self._front.in_force

    @property
    def has_chat_template(self) -> bool:
        """Whether the model can be talked to with ``chat``. Raises ``ModelError`` when its template is broken."""
        return self._open_front().chat_template is not None

    def stats(self) -> EngineStats:
        """How the engine stands now."""
        self._check_open()
        return self._front.client.stats()

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included; of part of a character, U+FFFD. Raises ``InvalidRequest``."""
        return self._open_front().decode(token_ids)

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        errors: Literal["raise", "return"] = "raise",
        **options: Unpack[BatchOptions],
    ) -> list[Completion]:
        """Complete the prompts, all at once; one ``Completion`` each comes in their order, with ``n`` choices.

        ``options`` are ``priority``, ``tenant``, ``timeout`` (seconds from now), ``cache_salt``, ``extra`` (bytes by
        plugin name), ``adapter`` and ``traceparent``: one value for all prompts, or a list with one each.

        Raises ``InvalidRequest`` that names the prompt's index before any of them runs; for a shape that cannot be
        compiled, as soon as that is known, and the others are aborted. With ``errors="return"`` the others run, and it
        is told in the ``Completion.error`` of that prompt, as is what fails while it runs: also the end of the group
        that had it, while others are there.
        ``progress`` draws a bar on stderr.
        """
        many: Sequence[Prompt] = [prompts] if isinstance(prompts, str) else prompts
        if isinstance(many, list | tuple) and many and isinstance(many[0], int):
            raise InvalidRequest(
                "prompts is one list of token ids; give a list of prompts: [[1, 2, 3]]", param="prompt"
            )
        make = self._open_front().request
        return self._run(many, sampling_params, options, make, isinstance(prompts, str), progress, errors)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        errors: Literal["raise", "return"] = "raise",
        **options: Unpack[BatchOptions],
    ) -> list[Completion]:
        """Answer a conversation, or several, by the model's chat template. The rest is as in ``generate``."""
        alone = isinstance(messages, list | tuple) and (not messages or isinstance(messages[0], Mapping))
        many = cast("Sequence[Sequence[Message]]", [messages] if alone else messages)
        return self._run(many, sampling_params, options, self._open_front().chat_request, alone, progress, errors)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]) -> Stream:
        """Complete one prompt, delta by delta; with ``n`` choices each delta says of which it is.

        ``options`` as in ``generate``, and ``request_id``. Leaving the loop early, or dropping the stream, aborts the
        request.
        """
        front = self._open_front()
        return Stream(self, front.client, front.request(prompt, params, **options))

    def chat_stream(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Stream:
        """Answer one conversation, delta by delta."""
        front = self._open_front()
        return Stream(self, front.client, front.chat_request(messages, params, **options))

    def abort(self, request_id: str) -> None:
        """End a request; its last output has the finish reason "abort". Raises ``UnknownRequest``."""
        self._open_front().client.abort(request_id)

    def _run(
        self,
        prompts: Sequence[T],
        params: SamplingParams | Sequence[SamplingParams] | None,
        options: Mapping[str, Any],
        make: Callable[..., Request],
        alone: bool,
        progress: bool,
        errors: Literal["raise", "return"],
    ) -> list[Completion]:
        if errors not in ("raise", "return"):
            raise InvalidRequest(f'errors is "raise" or "return", not {errors!r}', param="errors")
        refused: dict[int, InvalidRequest] | None = {} if errors == "return" else None
        requests = each_request(prompts, params, options, make, alone=alone, refused=refused)
        runs = [request for request in requests if request is not None]
        ended, failed = self._finish(runs, progress=progress, apart=refused is not None, alone=alone)
        return [
            refusal(prompts[index], (refused or {})[index])
            if request is None
            else _answer(request, ended[request.ask.request_id], failed.get(request.ask.request_id))
            for index, request in enumerate(requests)
        ]

    def _finish(
        self, requests: Sequence[Request], *, progress: bool, apart: bool, alone: bool
    ) -> tuple[dict[str, list[RequestOutput]], dict[str, EnginebayError]]:
        """Run the requests to the ends of all their choices; what interrupts this aborts those that have not ended.

        ``apart``: one that is lost does not interrupt it, unless the whole engine is; the errors of these by id. Else
        one that is refused after all is named by its place, unless it is ``alone``.
        """
        client = self._front.client
        collector = Collector(only_ends=True)
        ended: dict[str, list[RequestOutput]] = {}
        failed: dict[str, EnginebayError] = {}
        sinks = {request.ask.request_id: collector.apart(request.ask.request_id) for request in requests}
        choices = {request.ask.request_id: request.ask.params.n for request in requests}
        unfinished = sum(request.ask.params.n for request in requests)
        try:
            with answers_bar(unfinished) if progress else contextlib.nullcontext() as advance:
                ended.update((request.ask.request_id, []) for request in requests)
                if requests:
                    asks = [(request.ask, sinks[request.ask.request_id]) for request in requests]
                    client.add_requests(asks, operation=requests[0].operation, validated=True)
                while unfinished:
                    outputs, lost_now = collector.wait_for_each(client)
                    for output in outputs:
                        ended[output.request_id].append(output)
                    failed.update(lost_now)
                    if lost_now and not apart:
                        raise _first_lost(requests, lost_now, alone=alone)
                    num_ended = len(outputs) + sum(choices[one] - len(ended[one]) for one in lost_now)
                    unfinished -= num_ended
                    if advance is not None:
                        advance(num_ended)
                if failed:
                    client.check_alive()
        except BaseException:
            for request in requests:
                request_id = request.ask.request_id
                if request_id in ended and len(ended[request_id]) < request.ask.params.n:
                    client.abort_quietly(request_id, sinks[request_id])
            raise
        return ended, failed

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise EngineDead("the engine is closed; make a new one")

    def _open_front(self) -> Front:
        self._check_open()
        return self._front


def _first_lost(requests: Sequence[Request], lost_now: Mapping[str, EnginebayError], *, alone: bool) -> EnginebayError:
    """The error of the first request that was lost; what is wrong with a prompt names its place."""
    for index, request in enumerate(requests):
        error = lost_now.get(request.ask.request_id)
        if isinstance(error, InvalidRequest) and not alone:
            return type(error)(f"prompt {index}: {error}", param=error.param)
        if error is not None:
            return error
    raise AssertionError("what is lost was asked for")


def _answer(request: Request, outputs: Sequence[RequestOutput], error: EnginebayError | None) -> Completion:
    if error is not None:
        return lost(request.ask, request.prompt, outputs, error)
    return completion(request.ask, request.prompt, outputs)
