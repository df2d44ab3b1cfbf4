"""What a request must be before the engine takes it. Pure: the same request gets the same answer, and its own error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from enginebay.engine.plain import plain, plain_float
from enginebay.errors import InvalidRequest
from enginebay.messages import EngineRequest, ExecuteModel, NewRequest, SamplingParams, SchedulerOutput
from enginebay.transport import TransportError, decode_call, encode

__all__ = [
    "MAX_EXTRA_BYTES",
    "MAX_ID_CHARS",
    "MAX_STOP_CHARS",
    "MAX_STOP_STRINGS",
    "AdmissionLimits",
    "Ask",
    "admit",
    "check_id",
    "validate",
]

MAX_ID_CHARS = 256
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKENS = 1024
MAX_EXTRA_BYTES = 64 * 1024

_SEED_BITS = 64
_INT_BITS = 63
"""Integers cross to the workers, and into traces, as signed numbers of 64 bits."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request as a front end brings it: tokenized, not yet looked at.

    ``timeout`` is seconds from its arrival. ``extra`` holds bytes per plugin name.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    tenant: str = ""
    timeout: float | None = None
    cache_salt: str = ""
    adapter: str = ""
    traceparent: str = ""
    extra: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AdmissionLimits:
    """What the engine in force can take. ``has_text``: whether the model has a tokenizer.

    ``runner`` is how messages name it: "runner 'v1' 1.0". ``check_fits`` gets (prompt tokens, max_tokens) and raises
    ``RequestTooLong``, with the numbers, for a request that can never run.
    """

    vocab_size: int
    runner: str
    features: frozenset[str]
    check_fits: Callable[[int, int], None]
    has_text: bool = True


def validate(ask: Ask, limits: AdmissionLimits) -> Ask:
    """The request with values of plain types, when it may pass.

    Raises ``InvalidRequest`` (or ``RequestTooLong``) with the field at fault.
    """
    ask = _plain_ask(ask)
    check_id(ask.request_id)
    _check_prompt(ask.prompt_token_ids, limits.vocab_size)
    _check_params(ask.params, limits)
    _check_rest(ask)
    limits.check_fits(len(ask.prompt_token_ids), ask.params.max_tokens)
    _check_crosses(ask)
    return ask


def _plain_ask(ask: Ask) -> Ask:
    values = {name: plain(getattr(ask, name)) for name in Ask.__dataclass_fields__}
    if isinstance(ask.params, SamplingParams):
        params = {name: plain(getattr(ask.params, name)) for name in SamplingParams.__struct_fields__}
        params |= {name: plain_float(params[name]) for name in ("temperature", "top_p")}
        values["params"] = SamplingParams(**params)
    if type(values["extra"]) is not dict:
        values["extra"] = ask.extra  # refused by the name of its own type
    return Ask(**{**values, "timeout": plain_float(ask.timeout)})


def admit(ask: Ask, *, seed: int, arrival: float, arrival_number: int, default_timeout: float | None) -> EngineRequest:
    """The request as the core keeps it: ``seed`` is used when the client gave none, the shorter timeout counts."""
    timeouts = [timeout for timeout in (ask.timeout, default_timeout) if timeout is not None]
    return EngineRequest(
        request_id=ask.request_id,
        prompt_token_ids=ask.prompt_token_ids,
        params=ask.params,
        seed=seed if ask.params.seed is None else ask.params.seed,
        arrival=arrival,
        arrival_number=arrival_number,
        priority=ask.priority,
        tenant=ask.tenant,
        deadline=arrival + min(timeouts) if timeouts else None,
        cache_salt=ask.cache_salt,
        adapter=ask.adapter,
        traceparent=ask.traceparent,
        extra=ask.extra,
    )


def _refuse(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param=param)


def check_id(request_id: object) -> None:
    """Raise ``InvalidRequest`` for an id that is no string, empty, or too long."""
    if not isinstance(request_id, str):
        raise _refuse(
            "request_id", f"request_id must be a string, not {type(request_id).__name__} ({_shown(request_id)})"
        )
    if not request_id:
        raise _refuse("request_id", "request_id must not be empty")
    if len(request_id) > MAX_ID_CHARS:
        raise _refuse("request_id", f"request_id has {len(request_id)} characters; at most {MAX_ID_CHARS} are allowed")
    _check_unicode("request_id", request_id)


def _check_prompt(token_ids: Sequence[int], vocab_size: int) -> None:
    _check_sequence("prompt", token_ids)
    if not token_ids:
        raise _refuse("prompt", "the prompt is empty; it must have at least one token")
    for position, token_id in enumerate(token_ids):
        if not _is_int(token_id):
            raise _refuse(
                "prompt",
                f"prompt token {position} is {_shown(token_id)}: token ids are integers from 0 to {vocab_size - 1}",
            )
        if not 0 <= token_id < vocab_size:
            raise _refuse(
                "prompt",
                f"prompt token {position} is {_shown(token_id)}, "
                f"outside the model's vocabulary (0 to {vocab_size - 1})",
            )


def _check_params(params: SamplingParams, limits: AdmissionLimits) -> None:
    if not isinstance(params, SamplingParams):
        raise _refuse("params", f"sampling parameters must be SamplingParams, not {type(params).__name__}")
    _at_least("max_tokens", params.max_tokens, 1)
    if not _is_finite(params.temperature) or params.temperature < 0:
        raise _refuse(
            "temperature", f"temperature must be a finite number, 0 or more, not {_shown(params.temperature)}"
        )
    if not _is_finite(params.top_p) or not 0 < params.top_p <= 1:
        raise _refuse("top_p", f"top_p must be above 0 and at most 1, not {_shown(params.top_p)}")
    _at_least("top_k", params.top_k, 0)
    if params.seed is not None and not (_is_int(params.seed) and 0 <= params.seed < 2**_SEED_BITS):
        raise _refuse("seed", f"seed must be an integer from 0 to 2**{_SEED_BITS} - 1, not {_shown(params.seed)}")
    for name in ("ignore_eos", "skip_special_tokens"):
        if not isinstance(getattr(params, name), bool):
            raise _refuse(name, f"{name} must be True or False, not {_shown(getattr(params, name))}")
    _check_stops(params, limits)
    _check_features(params, limits)


def _check_stops(params: SamplingParams, limits: AdmissionLimits) -> None:
    _check_sequence("stop", params.stop)
    if len(params.stop) > MAX_STOP_STRINGS:
        raise _refuse("stop", f"stop has {len(params.stop)} strings; at most {MAX_STOP_STRINGS} are allowed")
    for stop in params.stop:
        if not _is_text(stop):
            raise _refuse("stop", f"stop strings must be non-empty strings, not {_shown(stop)}")
        if len(stop) > MAX_STOP_CHARS:
            raise _refuse("stop", f"a stop string has {len(stop)} characters; at most {MAX_STOP_CHARS} are allowed")
        _check_unicode("stop", stop)
    if params.stop and not limits.has_text:
        raise _refuse("stop", "stop strings need a tokenizer, and this model has none; use stop_token_ids")
    _check_sequence("stop_token_ids", params.stop_token_ids)
    if len(params.stop_token_ids) > MAX_STOP_TOKENS:
        raise _refuse(
            "stop_token_ids",
            f"stop_token_ids has {len(params.stop_token_ids)} ids; at most {MAX_STOP_TOKENS} are allowed",
        )
    for token_id in params.stop_token_ids:
        if not _is_int(token_id) or not 0 <= token_id < limits.vocab_size:
            raise _refuse(
                "stop_token_ids",
                f"stop token {_shown(token_id)} is outside the model's vocabulary (0 to {limits.vocab_size - 1})",
            )


def _check_features(params: SamplingParams, limits: AdmissionLimits) -> None:
    wishes = {"top_k": params.top_k > 0, "top_p": params.top_p < 1, "seed": params.seed is not None}
    for name, wished in wishes.items():
        if wished and name not in limits.features:
            served = ", ".join(sorted(limits.features)) or "greedy and temperature only"
            raise _refuse(name, f"{limits.runner} does not serve {name}; it serves: {served}")


def _check_rest(ask: Ask) -> None:
    if not _is_int(ask.priority) or not -(2**31) <= ask.priority < 2**31:
        raise _refuse("priority", f"priority must be an integer within 32 bits, not {_shown(ask.priority)}")
    if ask.timeout is not None and (not _is_finite(ask.timeout) or ask.timeout <= 0):
        raise _refuse("timeout", f"timeout must be a finite number of seconds above 0, not {_shown(ask.timeout)}")
    for name in ("tenant", "cache_salt", "adapter", "traceparent"):
        value = getattr(ask, name)
        if type(value) is not str or len(value) > MAX_ID_CHARS:
            raise _refuse(name, f"{name} must be a string of at most {MAX_ID_CHARS} characters")
        _check_unicode(name, value)
    if ask.adapter:
        raise _refuse("adapter", f"adapter {_shown(ask.adapter)} is not loaded; this version serves no adapters")
    _check_extra(ask.extra)


def _check_extra(extra: object) -> None:
    if type(extra) is not dict:
        raise _refuse("extra", f"extra must be a dict of bytes by plugin name, not {type(extra).__name__}")
    for name, value in extra.items():
        if type(name) is not str or type(value) is not bytes:
            raise _refuse("extra", f"extra must hold bytes by plugin name, not {_shown(value)} under {_shown(name)}")
        _check_unicode("extra", name)
    size = sum(len(name) + len(value) for name, value in extra.items())
    if size > MAX_EXTRA_BYTES:
        raise _refuse("extra", f"extra holds {size} bytes; at most {MAX_EXTRA_BYTES} are allowed")


def _check_crosses(ask: Ask) -> None:
    """The last line: what the codec cannot carry to a worker and back is this client's error, and no step's."""
    new = NewRequest(
        request_id=ask.request_id,
        token_ids=ask.prompt_token_ids,
        num_prompt_tokens=len(ask.prompt_token_ids),
        params=ask.params,
        seed=ask.params.seed or 0,
        block_ids=(),
        num_computed_tokens=0,
        extra=ask.extra,
    )
    try:
        decode_call(encode(ExecuteModel(scheduler_output=SchedulerOutput(step=0, new=(new,)))))
    except TransportError as error:
        raise InvalidRequest(f"the request cannot be sent to a worker: {error}") from error


def _check_sequence(name: str, value: object) -> None:
    if type(value) is not tuple:  # a list is one by now
        raise _refuse(name, f"{name} must be a tuple, not {type(value).__name__}")


def _is_text(value: object) -> bool:
    return type(value) is str and value != ""


def _check_unicode(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _refuse(
            name, f"{name} has a lone surrogate at character {error.start} ({_shown(value)}): it is no Unicode text"
        ) from None


def _at_least(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise _refuse(name, f"{name} must be an integer, {least} or more, not {_shown(value)}")
    if value >= 2**_INT_BITS:
        raise _refuse(name, f"{name} must be an integer from {least} to 2**{_INT_BITS} - 1, not {_shown(value)}")


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_finite(value: object) -> bool:
    """Whether it is a number: an integer is a float by now, unless no float can hold it."""
    return type(value) is float and math.isfinite(value)


def _shown(value: object) -> str:
    """The value in a message: cut, and also when it cannot say itself (an integer of 5,000 digits cannot)."""
    try:
        return f"{value!r:.80}"
    except Exception as error:
        return f"a value of type {type(value).__name__} whose repr fails: {error}"[:160]
