"""What a client asks of the engine, and what it gets back.

Of what there is one per request or token, none can be part of a cycle, and the collector need not look at it.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

from enginebay.messages._structured import StructuredOutput


class FinishReason(StrEnum):
    """Why a request ended. ``STOP``: eos, stop token or stop string. ``LENGTH``: max_tokens or the model's length."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class SamplingParams(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How one request's tokens are drawn, and when it ends.

    ``temperature`` 0 (the default) is greedy. ``top_k`` 0, ``top_p`` 1.0 and ``min_p`` 0.0 switch those filters off;
    ``min_p`` keeps tokens whose probability is at least so large a share of the largest one. ``seed`` makes
    the draws repeatable: each draw is keyed by (seed, choice, position, token id) and by nothing else, so neither the
    batch, nor a preemption, nor a restart changes it; without one, a seed is drawn when the request is admitted.
    ``n`` choices are answered to one prompt, each with its own draws.

    ``repetition_penalty`` (above 0; 1.0: none) divides a positive and multiplies a negative logit of each token of the
    prompt or the answer (Keskar et al., 2019); ``presence_penalty`` and ``frequency_penalty`` are taken off the logits
    of the answer's tokens, once and per occurrence. ``logit_bias`` is added by token id after them. ``bad_words`` never
    come: the token that would complete one, with or without a space before it, is not drawn; the engine resolves them
    to ``bad_words_token_ids``, which can be given as well. Below ``min_tokens`` generated tokens neither eos nor a stop
    token is drawn, and a stop string does not end the request.

    ``max_tokens`` counts generated tokens; the model's length ends a request in any case. A stop string is cut from
    the text and may span tokens; eos and stop tokens stay in ``token_ids`` and out of the text. ``ignore_eos``
    ignores only eos. ``truncate_prompt_tokens`` keeps the last so many tokens of a longer prompt.

    ``logprobs``: the log-probability of each drawn token and of so many likeliest ones beside it, of the model's own
    distribution (before penalties, bias, temperature and filters); ``prompt_logprobs`` the same for the prompt.

    ``structured`` gives the answer's shape: no token is drawn that leaves it, and when it is complete the answer ends.
    Workers are told only that there is one.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured: StructuredOutput | None = None


class EngineRequest(Struct, frozen=True, kw_only=True, gc=False):
    """One request as the engine core keeps it, validated and tokenized.

    ``arrival`` is the monotonic time (seconds) and ``arrival_number`` the order in which requests came;
    ``seed`` is the effective one, drawn at admission when the client gave none. ``committed_token_ids`` is what
    was generated before this object was made: not empty only when a fresh scheduler is filled from the ledger.
    ``deadline`` is monotonic seconds. ``extra`` holds bytes per plugin name, never looked at by the core.
    A request for several choices becomes one of these for each: ``choice`` is its number, and ``parent_id`` the id
    that the client gave; with one choice ``parent_id`` is "" and ``request_id`` the client's own.
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
    choice: int = 0
    parent_id: str = ""
    extra: dict[str, bytes] = field(default_factory=dict)


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    """Tokens that a request cost; committed tokens are counted once, work done again is counted apart."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0


class TokenLogprob(Struct, frozen=True, kw_only=True, gc=False):
    """One token's natural log-probability under the model's own distribution, and the likeliest ones at its place.

    ``rank`` is 1 for the likeliest; ties count for the lower id. ``top`` holds (token id, log-probability), best first,
    as many as were asked for; the token itself need not be among them.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class RequestOutput(Struct, frozen=True, kw_only=True, gc=False):
    """New tokens of one choice of a request: a delta that starts at ``offset`` generated tokens.

    Offsets are gapless. ``text`` is the text that these tokens made final (never half a character); it can lag behind
    the tokens, and what is held back comes at the latest with ``finish_reason``. ``usage`` is set when it is finished,
    ``error`` when it failed; ``error_param`` too, when the request itself was wrong, which was found out before any of
    it ran: the field at fault, or "". Front ends raise it as ``InvalidRequest``, and never hand such a delta on.
    ``request_id`` is the client's, ``choice`` counts from 0. When they were asked for,
    ``logprobs`` has one entry per token of ``token_ids``, and ``prompt_logprobs`` the next of the prompt's, of which
    the first belongs to the prompt's second token: nothing comes before its first.
    """

    request_id: str
    offset: int
    choice: int = 0
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    error: str | None = None
    error_param: str | None = None
