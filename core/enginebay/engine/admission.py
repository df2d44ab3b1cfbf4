"""What a request must be before the engine takes it. Pure: the same request gets the same answer, and its own error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from enginebay.errors import InvalidRequest
from enginebay.messages import EngineRequest, SamplingParams

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


def validate(ask: Ask, limits: AdmissionLimits) -> None:
    """Raise ``InvalidRequest`` (or ``RequestTooLong``) with the field at fault, or let the request pass."""
    check_id(ask.request_id)
    _check_prompt(ask.prompt_token_ids, limits.vocab_size)
    _check_params(ask.params, limits)
    _check_rest(ask)
    limits.check_fits(len(ask.prompt_token_ids), ask.params.max_tokens)


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
            "request_id", f"request_id must be a string, not {type(request_id).__name__} ({request_id!r:.80})"
        )
    if not request_id:
        raise _refuse("request_id", "request_id must not be empty")
    if len(request_id) > MAX_ID_CHARS:
        raise _refuse("request_id", f"request_id has {len(request_id)} characters; at most {MAX_ID_CHARS} are allowed")


def _check_prompt(token_ids: Sequence[int], vocab_size: int) -> None:
    if not token_ids:
        raise _refuse("prompt", "the prompt is empty; it must have at least one token")
    for position, token_id in enumerate(token_ids):
        if not _is_int(token_id):
            raise _refuse(
                "prompt",
                f"prompt token {position} is {token_id!r:.80}: token ids are integers from 0 to {vocab_size - 1}",
            )
        if not 0 <= token_id < vocab_size:
            raise _refuse(
                "prompt",
                f"prompt token {position} is {token_id}, outside the model's vocabulary (0 to {vocab_size - 1})",
            )


def _check_params(params: SamplingParams, limits: AdmissionLimits) -> None:
    if not isinstance(params, SamplingParams):
        raise _refuse("params", f"sampling parameters must be SamplingParams, not {type(params).__name__}")
    _at_least("max_tokens", params.max_tokens, 1)
    if not _is_finite(params.temperature) or params.temperature < 0:
        raise _refuse("temperature", f"temperature must be a finite number, 0 or more, not {params.temperature!r:.80}")
    if not _is_finite(params.top_p) or not 0 < params.top_p <= 1:
        raise _refuse("top_p", f"top_p must be above 0 and at most 1, not {params.top_p!r:.80}")
    _at_least("top_k", params.top_k, 0)
    if params.seed is not None and not (_is_int(params.seed) and 0 <= params.seed < 2**_SEED_BITS):
        raise _refuse("seed", f"seed must be an integer from 0 to 2**{_SEED_BITS} - 1, not {params.seed!r:.80}")
    _check_stops(params, limits)
    _check_features(params, limits)


def _check_stops(params: SamplingParams, limits: AdmissionLimits) -> None:
    _check_sequence("stop", params.stop)
    if len(params.stop) > MAX_STOP_STRINGS:
        raise _refuse("stop", f"stop has {len(params.stop)} strings; at most {MAX_STOP_STRINGS} are allowed")
    for stop in params.stop:
        if not _is_text(stop):
            raise _refuse("stop", f"stop strings must be non-empty strings, not {stop!r:.80}")
        if len(stop) > MAX_STOP_CHARS:
            raise _refuse("stop", f"a stop string has {len(stop)} characters; at most {MAX_STOP_CHARS} are allowed")
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
                f"stop token {token_id!r:.80} is outside the model's vocabulary (0 to {limits.vocab_size - 1})",
            )


def _check_features(params: SamplingParams, limits: AdmissionLimits) -> None:
    wishes = {"top_k": params.top_k > 0, "top_p": params.top_p < 1, "seed": params.seed is not None}
    for name, wished in wishes.items():
        if wished and name not in limits.features:
            served = ", ".join(sorted(limits.features)) or "greedy and temperature only"
            raise _refuse(name, f"{limits.runner} does not serve {name}; it serves: {served}")


def _check_rest(ask: Ask) -> None:
    if not _is_int(ask.priority) or not -(2**31) <= ask.priority < 2**31:
        raise _refuse("priority", f"priority must be an integer within 32 bits, not {ask.priority!r:.80}")
    if ask.timeout is not None and (not _is_finite(ask.timeout) or ask.timeout <= 0):
        raise _refuse("timeout", f"timeout must be a finite number of seconds above 0, not {ask.timeout!r:.80}")
    for name in ("tenant", "cache_salt", "adapter"):
        value = getattr(ask, name)
        if not isinstance(value, str) or len(value) > MAX_ID_CHARS:
            raise _refuse(name, f"{name} must be a string of at most {MAX_ID_CHARS} characters")
    if ask.adapter:
        raise _refuse("adapter", f"adapter {ask.adapter!r:.80} is not loaded; this version serves no adapters")
    size = sum(len(key) + len(value) for key, value in ask.extra.items())
    if size > MAX_EXTRA_BYTES:
        raise _refuse("extra", f"extra holds {size} bytes; at most {MAX_EXTRA_BYTES} are allowed")


def _check_sequence(name: str, value: object) -> None:
    if not isinstance(value, (tuple, list)):
        raise _refuse(name, f"{name} must be a tuple, not {type(value).__name__}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _at_least(name: str, value: object, least: int) -> None:
    if not _is_int(value) or int(value) < least:  # type: ignore[call-overload]  # _is_int has shown that it is one
        raise _refuse(name, f"{name} must be an integer, {least} or more, not {value!r:.80}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
