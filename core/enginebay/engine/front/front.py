"""What both front ends share: an engine that is started and closed, and prompts made into requests."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from enginebay import tracing
from enginebay.config import EngineConfig, Resolved, load
from enginebay.engine.admission.admit import Ask
from enginebay.engine.admission.checks import check_tokens, kind_of
from enginebay.engine.admission.options import check_known, for_each
from enginebay.engine.port import EnginePort
from enginebay.engine.replicas.growing import GrowingSet
from enginebay.engine.spans import CHAT, TEXT_COMPLETION
from enginebay.engine.startup.groups import start_groups
from enginebay.engine.startup.named import also_wrong
from enginebay.engine.startup.plan import plan
from enginebay.engine.startup.texts import find_chat_template, read_tokenizer
from enginebay.errors import CapabilityError, InvalidRequest, ModelError
from enginebay.messages import ModelInfo, SamplingParams
from enginebay.plugins import PluginHost
from enginebay.runtime import Runtime, system_runtime
from enginebay.telemetry import Telemetry, setup
from enginebay.text import ChatTemplate, Tokenizer, encode_chat, encode_prompt

__all__ = [
    "ConfigLike",
    "Front",
    "Message",
    "Prompt",
    "Request",
    "each_request",
    "resolve_config",
]

ConfigLike = str | Path | EngineConfig | Mapping[str, Any] | None
"""A path of an ``engine.toml``, a config, its tables as a mapping, or None for the defaults."""

Prompt = str | Sequence[int]
"""Text, or token ids."""

Message = Mapping[str, str]
"""``{"role": …, "content": …}``."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checked request with the text that it came from."""

    ask: Ask
    prompt: str | None
    operation: str


def resolve_config(config: ConfigLike, sets: Sequence[str]) -> Resolved:
    """The config in all its forms, validated. Raises ``ConfigError``.

    An ``EngineConfig`` is taken as it is; the environment applies to the other forms, as on the command line.
    """
    if isinstance(config, EngineConfig):
        if not sets:
            return Resolved(config=config)
        return load(config.model_dump(mode="json", exclude_unset=True), sets=sets, environ={}, also=also_wrong)
    return load(Path(config) if isinstance(config, str) else config, sets=sets, also=also_wrong)


class Front:
    """A running engine with its tokenizer. ``close`` gives everything back; it is bounded and idempotent."""

    def __init__(
        self,
        client: EnginePort,
        model: ModelInfo,
        runtime: Runtime,
        tokenizer: Tokenizer,
        *,
        tokenizer_path: Path | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """``tokenizer_path`` is where it was read from, if that is not the model's own folder."""
        self.client = client
        self.model = model
        self.tokenizer = tokenizer
        self.tokenizer_path = tokenizer_path
        self.runtime = runtime
        self._ids = runtime.entropy.stream("request_ids")
        self._telemetry = telemetry
        self.grow: Callable[[], int] = _not_ours
        """Start one more group of an engine in this process; its number."""

    @classmethod
    def open(
        cls,
        config: ConfigLike,
        sets: Sequence[str] = (),
        *,
        runtime: Runtime | None = None,
        host: PluginHost | None = None,
    ) -> Front:
        """Start an engine and its loop. What was started is stopped again when something fails on the way."""
        runtime, host = runtime or system_runtime(), host or PluginHost()
        clock = runtime.clock
        with contextlib.ExitStack() as undo:
            begun_ns = clock.wall_ns()
            resolved = resolve_config(config, sets)
            telemetry: Telemetry = setup(resolved.config.telemetry, role="engine")
            undo.callback(telemetry.shutdown)
            with tracing.span(tracing.ENGINE_START, start_ns=begun_ns) as span:  # here, so that no failure lacks it
                tracing.past(tracing.CONFIG_RESOLVE, begun_ns, clock.wall_ns())
                with tracing.span(tracing.PLUGIN_DISCOVERY):
                    made = plan(resolved, host)
                tokenizer = read_tokenizer(made)
                cores, growth = start_groups(span, made, runtime, host, tokenizer)
            client = GrowingSet(
                cores,
                growth.another,
                block_size=made.block_size if made.prefix_caching else 0,
                slack=made.limits.max_num_batched_tokens,  # a hit in the cache is not worth more than a step's wait
                stop_timeout=made.config.deadlines.stop,
                step_timeout=made.config.deadlines.step,
                on_end=telemetry.shutdown,
            )
            front = cls(
                client,
                made.model,
                cores[0].runtime,  # whose entropy the ranks agreed on
                tokenizer,
                tokenizer_path=made.config.model.tokenizer,
                telemetry=telemetry,
            )
            front.grow = client.one_more
            client.start()
            undo.pop_all()
        return front

    @property
    def in_force(self) -> dict[str, str]:
        """What was really chosen, by the engine and by its workers."""
        return self.client.in_force

    def close(self) -> None:
        """Stop the engine, its thread, its exporters and the template's process.

        In a forked child nothing of these is there to be stopped.
        """
        if not self.client.is_of_this_process:
            return
        try:
            self.client.stop()
        finally:
            if self._telemetry is not None:
                self._telemetry.shutdown()
            if (template := self.__dict__.get("chat_template")) is not None:  # made on first use
                template.close()

    @functools.cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The model's own chat template, if it has one. Raises ``ModelError`` for a broken one."""
        return find_chat_template(Path(self.model.path), self.tokenizer_path)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of these tokens, special ones included. Raises ``InvalidRequest``."""
        try:
            ids = [operator.index(token_id) for token_id in token_ids]
        except TypeError as error:
            raise InvalidRequest(f"token_ids must be a list of token ids: {error}", param="token_ids") from None
        check_tokens("token_ids", "token", ids, self.model.vocab_size)
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def request(self, prompt: Prompt, params: SamplingParams | None, **options: Any) -> Request:
        """A checked request for a plain completion. ``options`` are ``RequestOptions``. Raises ``InvalidRequest``."""
        given: object = prompt
        if isinstance(given, str):
            self.client.check_size([given], params)
            return self._checked(encode_prompt(self.tokenizer, given), params, given, TEXT_COMPLETION, options)
        if isinstance(given, bytes) or not isinstance(given, Sequence):
            raise InvalidRequest(f"a prompt is text or a list of token ids, not {type(given).__name__}", param="prompt")
        return self._checked(given, params, None, TEXT_COMPLETION, options)

    def chat_request(self, messages: Sequence[Message], params: SamplingParams | None, **options: Any) -> Request:
        """A checked request for the answer to a conversation; its ``prompt`` is the last message's text."""
        if self.chat_template is None:
            raise ModelError(
                f"the model in {self.model.path} has no chat template: give it plain prompts, or use a chat model"
            )
        self.client.check_size(_texts(messages), params)
        ids = encode_chat(self.tokenizer, self.chat_template, messages)
        return self._checked(ids, params, messages[-1]["content"], CHAT, options)

    def _checked(
        self,
        ids: Sequence[int],
        params: SamplingParams | None,
        prompt: str | None,
        operation: str,
        options: dict[str, Any],
    ) -> Request:
        check_known(options)
        options.setdefault("request_id", f"{self._ids.getrandbits(64):016x}")
        options.setdefault("traceparent", tracing.traceparent())
        ask = Ask(prompt_token_ids=tuple(ids), params=SamplingParams() if params is None else params, **options)
        return Request(ask=self.client.validate(ask), prompt=prompt, operation=operation)


def _not_ours() -> int:
    raise CapabilityError("the engine runs in another process, where it was started with as many groups as it has")


def _texts(messages: object) -> list[str]:
    """All the text of a conversation, whatever else may be wrong with it."""
    if not isinstance(messages, list | tuple):
        return []
    said = [message for message in messages if isinstance(message, Mapping)]
    return [text for message in said for text in message.values() if isinstance(text, str)]


T = TypeVar("T")


def each_request(
    prompts: Sequence[T],
    params: SamplingParams | Sequence[SamplingParams] | None,
    options: Mapping[str, Any],
    make: Callable[..., Request],
    *,
    alone: bool,
    refused: dict[int, InvalidRequest] | None = None,
) -> list[Request | None]:
    """All requests of a batch, checked before any of them runs; an error names the prompt's index, unless ``alone``.

    ``make`` gets a prompt, its sampling parameters, and its options as keywords.

    With a ``refused`` the errors are put there, by index, and None stands in their place.
    """
    if not isinstance(prompts, list | tuple):
        raise InvalidRequest(f"prompts must be a list, not {type(prompts).__name__}", param="prompt")
    if not (params is None or isinstance(params, SamplingParams | list | tuple)):
        raise InvalidRequest(
            f"sampling parameters must be SamplingParams, or a list of them, not {kind_of(params)}",
            param="params",
        )
    if params is None or isinstance(params, SamplingParams):
        every: Sequence[SamplingParams | None] = [params] * len(prompts)
    elif len(params) == len(prompts):
        every = params
    else:
        raise InvalidRequest(
            f"there are {len(prompts)} prompts and {len(params)} sampling parameters: give one for all, or one each",
            param="params",
        )
    requests: list[Request | None] = []
    each = for_each(options, len(prompts))
    for index, (prompt, one) in enumerate(zip(prompts, every, strict=True)):
        try:
            requests.append(make(prompt, one, **each[index]))
        except InvalidRequest as error:
            if refused is not None:
                refused[index] = error
                requests.append(None)
                continue
            if alone:
                raise
            raise type(error)(f"prompt {index}: {error}", param=error.param) from error
    return requests
