"""What sampling parameters must be, field by field; and the wishes that a runner may not serve."""

from __future__ import annotations

from typing import Final

import msgspec

from enginebay.engine.admission.checks import (
    at_least,
    check_sequence,
    check_unicode,
    is_finite,
    is_int,
    is_text,
    kind_of,
    refuse,
    shown,
)
from enginebay.engine.admission.limits import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_BIASED_TOKENS,
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKENS,
    AdmissionLimits,
)
from enginebay.engine.admission.plain import plain, plain_float, plain_rows
from enginebay.engine.admission.structured import check_structured, plain_structured
from enginebay.messages import SamplingParams

__all__ = ["check_features", "check_params", "plain_params", "with_bad_words"]

_SEED_BITS: Final = 64
_MOST_FLOAT: Final = 3e38
"""The workers compute in 32 bits; what is beyond them is infinite there."""

_FLOATS: Final = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def plain_params(params: SamplingParams) -> SamplingParams:
    """The same of built-in types, integers as floats where floats are meant."""
    values = {name: plain(getattr(params, name)) for name in SamplingParams.__struct_fields__}
    values |= {name: plain_float(values[name]) for name in _FLOATS}
    if type(values["logit_bias"]) is dict:
        values["logit_bias"] = {token_id: plain_float(bias) for token_id, bias in values["logit_bias"].items()}
    values["bad_words_token_ids"] = plain_rows(values["bad_words_token_ids"])
    values["structured"] = plain_structured(params.structured)
    return SamplingParams(**values)


def check_params(params: SamplingParams, limits: AdmissionLimits) -> None:
    """Raise ``InvalidRequest`` with the field at fault."""
    if not isinstance(params, SamplingParams):
        raise refuse("params", f"sampling parameters must be SamplingParams, not {kind_of(params)}")
    _check_lengths(params)
    _check_draws(params)
    _check_penalties(params, limits)
    for name in ("ignore_eos", "skip_special_tokens"):
        if not isinstance(getattr(params, name), bool):
            raise refuse(name, f"{name} must be True or False, not {shown(getattr(params, name))}")
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) is not None:
            at_least(name, getattr(params, name), 0, MAX_LOGPROBS)
    _check_words("stop", "stop strings", "a stop string", params.stop, MAX_STOP_STRINGS)
    if params.stop and not limits.has_text:
        raise refuse("stop", "stop strings need a tokenizer, and this model has none; use stop_token_ids")
    _check_ids("stop_token_ids", "stop token", params.stop_token_ids, MAX_STOP_TOKENS, limits)
    _check_bad_words(params, limits)
    check_structured(params)
    check_features(params, limits)


def with_bad_words(params: SamplingParams, limits: AdmissionLimits) -> SamplingParams:
    """The parameters with the token ids of their bad words, each sequence once."""
    if not params.bad_words:
        return params
    assert limits.bad_word_ids is not None, "without a tokenizer bad words are refused"
    found = dict.fromkeys(params.bad_words_token_ids)
    for word in params.bad_words:
        found.update(dict.fromkeys(limits.bad_word_ids(word)))
    _check_bad_word_size(tuple(found))
    return msgspec.structs.replace(params, bad_words_token_ids=tuple(found))


def _check_lengths(params: SamplingParams) -> None:
    at_least("max_tokens", params.max_tokens, 1)
    at_least("min_tokens", params.min_tokens, 0)
    if params.min_tokens > params.max_tokens:
        raise refuse(
            "min_tokens", f"min_tokens is {params.min_tokens}, and max_tokens {params.max_tokens}: it can be no more"
        )
    if params.truncate_prompt_tokens is not None:
        at_least("truncate_prompt_tokens", params.truncate_prompt_tokens, 1)


def _check_draws(params: SamplingParams) -> None:
    if not is_finite(params.temperature) or params.temperature < 0:
        raise refuse("temperature", f"temperature must be a finite number, 0 or more, not {shown(params.temperature)}")
    if not is_finite(params.top_p) or not 0 < params.top_p <= 1:
        raise refuse("top_p", f"top_p must be above 0 and at most 1, not {shown(params.top_p)}")
    if not is_finite(params.min_p) or not 0 <= params.min_p <= 1:
        raise refuse("min_p", f"min_p must be a number from 0 to 1, not {shown(params.min_p)}")
    at_least("top_k", params.top_k, 0)
    if params.seed is not None and not (is_int(params.seed) and 0 <= params.seed < 2**_SEED_BITS):
        raise refuse("seed", f"seed must be an integer from 0 to 2**{_SEED_BITS} - 1, not {shown(params.seed)}")
    at_least("n", params.n, 1, MAX_CHOICES)
    if params.n > 1 and params.temperature == 0:
        raise refuse(
            "n",
            f"n is {params.n} with temperature 0, where all choices are equal: set temperature above 0, or n to 1",
        )


def _check_penalties(params: SamplingParams, limits: AdmissionLimits) -> None:
    penalty = params.repetition_penalty
    if not is_finite(penalty) or not 1 / _MOST_FLOAT <= penalty <= _MOST_FLOAT:
        raise refuse(
            "repetition_penalty",
            f"repetition_penalty must be above 0 (1 is none, above 1 discourages), not {shown(penalty)}",
        )
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        if not is_finite(value) or not -2 <= value <= 2:
            raise refuse(name, f"{name} must be a number from -2 to 2, not {shown(value)}")
    bias = params.logit_bias
    if type(bias) is not dict:
        raise refuse("logit_bias", f"logit_bias must be a dict of numbers by token id, not {type(bias).__name__}")
    if len(bias) > MAX_BIASED_TOKENS:
        raise refuse("logit_bias", f"logit_bias has {len(bias)} token ids; at most {MAX_BIASED_TOKENS} are allowed")
    for token_id, value in bias.items():
        _check_id("logit_bias", "logit_bias token", token_id, limits)
        if not is_finite(value) or abs(value) > _MOST_FLOAT:
            raise refuse(
                "logit_bias", f"logit_bias of token {token_id} must be a finite number (32 bits), not {shown(value)}"
            )


def _check_bad_words(params: SamplingParams, limits: AdmissionLimits) -> None:
    _check_words("bad_words", "bad words", "a bad word", params.bad_words, MAX_BAD_WORDS)
    if params.bad_words and limits.bad_word_ids is None:
        raise refuse("bad_words", "bad words need a tokenizer, and this model has none; use bad_words_token_ids")
    check_sequence("bad_words_token_ids", params.bad_words_token_ids)
    for row in params.bad_words_token_ids:
        if type(row) is not tuple or not row:
            raise refuse("bad_words_token_ids", f"bad_words_token_ids must hold tuples of token ids, not {shown(row)}")
        for token_id in row:
            _check_id("bad_words_token_ids", "bad word token", token_id, limits)
    _check_bad_word_size(params.bad_words_token_ids)


def _check_bad_word_size(rows: tuple[tuple[int, ...], ...]) -> None:
    size = sum(map(len, rows))
    if size > MAX_BAD_WORD_TOKENS:
        raise refuse("bad_words", f"the bad words have {size} tokens in all; at most {MAX_BAD_WORD_TOKENS} are allowed")


def _check_words(name: str, many: str, one: str, words: tuple[str, ...], most: int) -> None:
    check_sequence(name, words)
    if len(words) > most:
        raise refuse(name, f"{name} has {len(words)} strings; at most {most} are allowed")
    for word in words:
        if not is_text(word):
            raise refuse(name, f"{many} must be non-empty strings, not {shown(word)}")
        if len(word) > MAX_STOP_CHARS:
            raise refuse(name, f"{one} has {len(word)} characters; at most {MAX_STOP_CHARS} are allowed")
        check_unicode(name, word)


def _check_ids(name: str, what: str, token_ids: tuple[int, ...], most: int, limits: AdmissionLimits) -> None:
    check_sequence(name, token_ids)
    if len(token_ids) > most:
        raise refuse(name, f"{name} has {len(token_ids)} ids; at most {most} are allowed")
    for token_id in token_ids:
        _check_id(name, what, token_id, limits)


def _check_id(name: str, what: str, token_id: int, limits: AdmissionLimits) -> None:
    if not is_int(token_id) or not 0 <= token_id < limits.vocab_size:
        raise refuse(name, f"{what} {shown(token_id)} is outside the model's vocabulary (0 to {limits.vocab_size - 1})")


def check_features(params: SamplingParams, limits: AdmissionLimits) -> None:
    """Raise ``InvalidRequest`` for the first wish that the runner does not serve."""
    wishes = {  # field: (feature, whether it is wished for)
        "top_k": ("top_k", params.top_k > 0),
        "top_p": ("top_p", params.top_p < 1),
        "min_p": ("min_p", params.min_p > 0),
        "seed": ("seed", params.seed is not None),
        "n": ("n", params.n > 1),
        "repetition_penalty": ("penalties", params.repetition_penalty != 1),
        "presence_penalty": ("penalties", params.presence_penalty != 0),
        "frequency_penalty": ("penalties", params.frequency_penalty != 0),
        "logit_bias": ("logit_bias", bool(params.logit_bias)),
        "bad_words": ("bad_words", bool(params.bad_words)),
        "bad_words_token_ids": ("bad_words", bool(params.bad_words_token_ids)),
        "min_tokens": ("min_tokens", params.min_tokens > 0),
        "logprobs": ("logprobs", params.logprobs is not None),
        "prompt_logprobs": ("prompt_logprobs", params.prompt_logprobs is not None),
        "structured": ("grammar", params.structured is not None),
    }
    for name, (feature, wished) in wishes.items():
        if wished and feature not in limits.features:
            served = ", ".join(sorted(limits.features)) or "greedy and temperature only"
            raise refuse(name, f"{limits.runner} does not serve {name}; it serves: {served}")
