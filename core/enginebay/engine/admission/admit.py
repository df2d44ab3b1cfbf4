"""What a request must be before the engine takes it. Pure: the same request gets the same answer, and its own error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from pydantic import ValidationError

from enginebay.engine.admission.checks import (
    check_sequence,
    check_tokens,
    check_unicode,
    is_finite,
    is_int,
    refuse,
    shown,
)
from enginebay.engine.admission.limits import (
    MAX_BYTES_PER_TOKEN,
    MAX_EXTRA_BYTES,
    MAX_ID_CHARS,
    MAX_PROMPT_BYTES,
    AdmissionLimits,
)
from enginebay.engine.admission.params import check_params, plain_params, with_bad_words
from enginebay.engine.admission.plain import plain, plain_float
from enginebay.engine.ledger import choice_id
from enginebay.errors import InvalidRequest, RequestTooLong
from enginebay.interfaces import Options
from enginebay.messages import EngineRequest, ExecuteModel, NewRequest, SamplingParams, SchedulerOutput
from enginebay.transport import TransportError, decode_call, encode

__all__ = ["AdmissionLimits", "Ask", "admit", "check_id", "check_size", "validate"]


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


def validate(ask: Ask, limits: AdmissionLimits) -> Ask:
    """The request with values of plain types, its prompt truncated and its bad words resolved, when it may pass.

    Raises ``InvalidRequest`` (or ``RequestTooLong``) with the field at fault.
    """
    ask = _plain_ask(ask)
    check_id(ask.request_id)
    check_params(ask.params, limits)
    params = with_bad_words(ask.params, limits)
    ask = replace(ask, params=params, prompt_token_ids=_truncated(ask.prompt_token_ids, params.truncate_prompt_tokens))
    _check_prompt(ask.prompt_token_ids, limits.vocab_size)
    _check_rest(ask, limits)
    _check_extra(ask.extra, limits)
    limits.check_fits(len(ask.prompt_token_ids), params.max_tokens)
    _check_crosses(ask)
    return ask


def check_size(texts: Iterable[str], params: SamplingParams | None, limits: AdmissionLimits) -> None:
    """Raise ``RequestTooLong`` for text that can hardly fit, so that nobody waits for its tokenizing.

    Of a prompt that is truncated any length fits, up to a bound on the work.
    """
    most, why = MAX_PROMPT_BYTES, "the most that is tokenized"
    truncate = params.truncate_prompt_tokens if isinstance(params, SamplingParams) else None
    if truncate is None and limits.max_model_len is not None and limits.max_model_len * MAX_BYTES_PER_TOKEN < most:
        most = limits.max_model_len * MAX_BYTES_PER_TOKEN
        why = f"{MAX_BYTES_PER_TOKEN} for each of the {limits.max_model_len} tokens of a request (max_model_len)"
    size = 0
    for text in texts:  # the bytes are counted only while they could be few enough
        size += len(text) if len(text) > most else len(text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise RequestTooLong(
            f"the prompt has {size} bytes or more, and at most {most} are taken, {why}: shorten it"
            + ("" if most == MAX_PROMPT_BYTES else ", or set truncate_prompt_tokens to keep its end"),
            param="prompt",
        )


def admit(
    ask: Ask, *, seed: int, arrival: float, arrival_number: int, default_timeout: float | None
) -> tuple[EngineRequest, ...]:
    """The request as the core keeps it: one for each choice, with arrival numbers from ``arrival_number`` on.

    ``seed`` is used when the client gave none, and all choices have the same; the shorter timeout counts. The first
    choice alone computes the prompt's log-probabilities: they are the same for all.
    """
    timeouts = [timeout for timeout in (ask.timeout, default_timeout) if timeout is not None]
    n = ask.params.n
    others = ask.params if n == 1 else msgspec.structs.replace(ask.params, prompt_logprobs=None)
    return tuple(
        EngineRequest(
            request_id=choice_id(ask.request_id, choice, n),
            prompt_token_ids=ask.prompt_token_ids,
            params=others if choice else ask.params,
            seed=seed if ask.params.seed is None else ask.params.seed,
            arrival=arrival,
            arrival_number=arrival_number + choice,
            priority=ask.priority,
            tenant=ask.tenant,
            deadline=arrival + min(timeouts) if timeouts else None,
            cache_salt=ask.cache_salt,
            adapter=ask.adapter,
            traceparent=ask.traceparent,
            choice=choice,
            parent_id="" if n == 1 else ask.request_id,
            extra=ask.extra,
        )
        for choice in range(n)
    )


def check_id(request_id: object) -> None:
    """Raise ``InvalidRequest`` for an id that is no string, empty, or too long."""
    if not isinstance(request_id, str):
        raise refuse(
            "request_id", f"request_id must be a string, not {type(request_id).__name__} ({shown(request_id)})"
        )
    if not request_id:
        raise refuse("request_id", "request_id must not be empty")
    if len(request_id) > MAX_ID_CHARS:
        raise refuse("request_id", f"request_id has {len(request_id)} characters; at most {MAX_ID_CHARS} are allowed")
    check_unicode("request_id", request_id)


def _plain_ask(ask: Ask) -> Ask:
    values = {name: plain(getattr(ask, name)) for name in Ask.__dataclass_fields__}
    if isinstance(ask.params, SamplingParams):
        values["params"] = plain_params(ask.params)
    if type(values["extra"]) is not dict:
        values["extra"] = ask.extra  # refused by the name of its own type
    return Ask(**{**values, "timeout": plain_float(ask.timeout)})


def _truncated(token_ids: tuple[int, ...], most: int | None) -> tuple[int, ...]:
    """The last tokens of the prompt; what is no tuple is refused later."""
    return token_ids[-most:] if most is not None and type(token_ids) is tuple else token_ids


def _check_prompt(token_ids: Sequence[int], vocab_size: int) -> None:
    check_sequence("prompt", token_ids)
    if not token_ids:
        raise refuse("prompt", "the prompt is empty; it must have at least one token")
    check_tokens("prompt", "prompt token", token_ids, vocab_size)


def _check_rest(ask: Ask, limits: AdmissionLimits) -> None:
    if not is_int(ask.priority) or not -(2**31) <= ask.priority < 2**31:
        raise refuse("priority", f"priority must be an integer within 32 bits, not {shown(ask.priority)}")
    if ask.timeout is not None and (not is_finite(ask.timeout) or ask.timeout <= 0):
        raise refuse("timeout", f"timeout must be a finite number of seconds above 0, not {shown(ask.timeout)}")
    if ask.timeout is not None and limits.untimed:
        raise refuse("timeout", f"timeout cannot be kept: {limits.untimed}; leave it out, and bound max_tokens")
    for name in ("tenant", "cache_salt", "adapter", "traceparent"):
        value = getattr(ask, name)
        if type(value) is not str or len(value) > MAX_ID_CHARS:
            raise refuse(name, f"{name} must be a string of at most {MAX_ID_CHARS} characters")
        check_unicode(name, value)
    if ask.adapter:
        raise refuse("adapter", f"adapter {shown(ask.adapter)} is not loaded; this version serves no adapters")


def _check_extra(extra: object, limits: AdmissionLimits) -> None:
    if type(extra) is not dict:
        raise refuse("extra", f"extra must be a dict of bytes by plugin name, not {type(extra).__name__}")
    for name, value in extra.items():
        if type(name) is not str or type(value) is not bytes:
            raise refuse("extra", f"extra must hold bytes by plugin name, not {shown(value)} under {shown(name)}")
        check_unicode("extra", name)
    size = sum(len(name.encode("utf-8", "surrogatepass")) + len(value) for name, value in extra.items())
    if size > MAX_EXTRA_BYTES:
        raise refuse("extra", f"extra holds {size} bytes; at most {MAX_EXTRA_BYTES} are allowed")
    for name, model in limits.request_extras:
        if name in extra:
            _check_extra_of(name, model, extra[name])


def _check_extra_of(name: str, model: type[Options], value: bytes) -> None:
    """Ask the plugin's own model; its validators are a stranger's code, and may raise anything."""
    try:
        model.model_validate_json(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, fault["loc"]))
        what = f"{shown(where)}: {fault['msg']}" if where else fault["msg"]
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
    else:
        return
    known = ", ".join(model.model_fields) or "no fields"
    raise refuse("extra", f"extra for {name!r}: {' '.join(what.split()):.160}; it takes JSON with {known:.80}")


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
