"""What a client asks of the engine, and what it gets back."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field


class FinishReason(StrEnum):
    """Why a request ended. ``STOP``: eos, stop token or stop string. ``LENGTH``: max_tokens or the model's length."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class SamplingParams(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one request's tokens are drawn, and when it ends.

    ``temperature`` 0 (the default) is greedy. ``top_k`` 0 and ``top_p`` 1.0 switch those filters off. ``seed`` makes
    the draws repeatable: each draw is keyed by (seed, choice, position, token id) and by nothing else, so neither the
    batch, nor a preemption, nor a restart changes it; without one, a seed is drawn when the request is admitted.
    ``max_tokens`` counts generated tokens; the model's length ends a request in any case. A stop string is cut from
    the text and may span tokens; eos and stop tokens stay in ``token_ids`` and out of the text. ``ignore_eos``
    ignores only eos.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True


class EngineRequest(Struct, frozen=True, kw_only=True):
    """One request as the engine core keeps it, validated and tokenized.

    ``arrival`` is the monotonic time (seconds) and ``arrival_number`` the order in which requests came;
    ``seed`` is the effective one, drawn at admission when the client gave none. ``committed_token_ids`` is what
    was generated before this object was made: not empty only when a fresh scheduler is filled from the ledger.
    ``deadline`` is monotonic seconds. ``extra`` holds bytes per plugin name, never looked at by the core.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    arrival: float
    arrival_number: int
    committed_token_ids: tuple[int, ...] = ()
    priority: int = 0
    tenant: str = ""
    deadline: float | None = None
    cache_salt: str = ""
    adapter: str = ""
    traceparent: str = ""
    extra: dict[str, bytes] = field(default_factory=dict)


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens that a request cost; committed tokens are counted once, work done again is counted apart."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0


class RequestOutput(Struct, frozen=True, kw_only=True):
    """New tokens of one request: a delta that starts at ``offset`` generated tokens.

    Offsets are gapless. ``text`` is the text that these tokens made final (never half a character); it can lag behind
    the tokens, and what is held back comes at the latest with ``finish_reason``. ``usage`` is set when it is finished,
    ``error`` when it failed.
    """

    request_id: str
    offset: int
    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    error: str | None = None
