"""Requests: every field with odd values, prompts and conversations with odd text, up to prompts of 10 MB."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from enginebay.engine.admission.admit import Ask, admit, check_size, validate
from enginebay.engine.admission.limits import AdmissionLimits
from enginebay.engine.startup.texts import bad_word_ids
from enginebay.errors import InvalidRequest, RequestTooLong
from enginebay.messages import SamplingParams
from enginebay.text import ChatTemplate, encode_chat, encode_prompt
from support.fuzzing import NUMBERS, SHORT, SOAK, TEXTS, Tally, any_value, fuzz
from support.tiny_gguf import TEMPLATE
from support.tiny_tokenizers import byte_level

TOKENIZER = byte_level()
FEATURES = ("top_k", "top_p", "min_p", "seed", "n", "penalties", "logit_bias", "bad_words", "min_tokens", "logprobs")
ODD: tuple[Any, ...] = (
    *(*NUMBERS, math.nan, math.inf, -math.inf, True, False, None, b"", b"\xff", object(), [], (), {}, set(), 10**5000),
    *TEXTS,
    *(("a",) * 17, ("x" * 257,), (1,) * 2000, {1: 1.0}, {1: math.nan}, {2**64: 1}, {"a": 1}, {5: "x"}, ((1, 2), (3,))),
    *([1, 2], [[1]], ((),), ("",), ("\ud800",), {"a": b"x"}, {"a": "x"}, {"a": b"x" * 70_000}, lambda: 1),
)
GOOD: dict[str, tuple[Any, ...]] = {
    "max_tokens": (1, 16),
    "temperature": (1, 0.7),
    "top_k": (0, 5),
    "top_p": (1.0, 0.5),
    "min_p": (0.0, 0.1),
    "seed": (None, 0, 2**64 - 1),
    "n": (1, 2, 16),
    "repetition_penalty": (1.0, 1.3),
    "presence_penalty": (0.0, -2.0),
    "frequency_penalty": (0.0, 2),
    "logit_bias": ({}, {1: -100.0, 5: 3}),
    "bad_words": ((), ("the",)),
    "min_tokens": (0, 1),
    "stop": ((), ("x", "é")),
    "stop_token_ids": ((), (1, 2)),
    "ignore_eos": (True, False),
    "skip_special_tokens": (True, False),
    "truncate_prompt_tokens": (None, 4),
    "logprobs": (None, 0, 20),
}
ASK: dict[str, tuple[Any, ...]] = {
    "request_id": ("r", "é" * 256),
    "priority": (0, -5),
    "tenant": ("", "a"),
    "timeout": (None, 3, 0.5),
    "cache_salt": ("", "s"),
    "traceparent": ("",),
}
DEPTHS = {
    "prompt": "^the prompt|^prompt token|prompt must",
    "messages": "messages|lone surrogate|chat template",
    "field": "must be|must not|must hold|at most|outside|lone|holds",
}
BIG = "a b " * 2_600_000


def _fits(prompt: int, most: int) -> None:
    if prompt + most > 128:
        raise RequestTooLong(f"{prompt} + {most} is more than 128 tokens", param="max_tokens")


LIMITS = AdmissionLimits(
    vocab_size=TOKENIZER.vocab_size,
    runner="runner 'fake' 1.0",
    features=frozenset(FEATURES),
    check_fits=_fits,
    max_model_len=128,
    bad_word_ids=bad_word_ids(TOKENIZER),
)


def _fields(chance: random.Random, good: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    fields = {name: chance.choice(values) for name, values in good.items() if chance.random() < 0.3}
    if chance.random() < 0.3:
        value = any_value(chance) if chance.random() < 0.2 else chance.choice(ODD)
        fields[chance.choice(list(good))] = value
    return fields


def _prompt(chance: random.Random, params: SamplingParams, template: ChatTemplate) -> tuple[Any, str]:
    act = chance.random()
    if act < 0.3:
        ids = [chance.randrange(TOKENIZER.vocab_size) for _ in range(chance.randrange(1, 20))]
        if chance.random() < 0.3:
            ids[0] = chance.choice(ODD)
        return tuple(ids), "ids"
    if act < 0.32:
        return chance.choice(ODD), "ids"
    words = [chance.choice((*TEXTS[:14], "the ", "and ", "é")) for _ in range(chance.randrange(8))]
    text = "".join(words) if chance.random() < 0.95 else chance.choice(TEXTS)
    if chance.randrange(500) == 0:
        text = BIG if chance.random() < 0.5 else "a" * 20_000
    if act < 0.7:
        check_size([text], params, LIMITS)
        return tuple(encode_prompt(TOKENIZER, text)), "text"
    messages: Any = [
        {"role": chance.choice(("user", "assistant")), "content": text} for _ in range(chance.randrange(3))
    ]
    if chance.random() < 0.1:
        messages = [*messages, chance.choice((any_value(chance), {"role": text, "content": ""}, {"role": "user"}))]
    check_size([text], params, LIMITS)
    return tuple(encode_chat(TOKENIZER, template, messages)), "chat"


def _case(chance: random.Random, template: ChatTemplate) -> str | None:
    params = SamplingParams(**{"max_tokens": 4, "temperature": 0.7, **_fields(chance, GOOD)})
    prompt, label = _prompt(chance, params, template)
    ask = Ask(**{"request_id": "r", "prompt_token_ids": prompt, "params": params, **_fields(chance, ASK)})
    checked = validate(ask, LIMITS)
    rows = admit(checked, seed=1, arrival=0.0, arrival_number=0, default_timeout=None)
    assert len(rows) == checked.params.n <= 16
    return label


@pytest.fixture
def case() -> Iterator[Callable[[random.Random], str | None]]:
    template = ChatTemplate(TEMPLATE, "here")
    yield lambda chance: _case(chance, template)
    template.close()


def _check(tally: Tally) -> None:
    shares = {"ids": 0.1, "text": 0.1, "chat": 0.05, "field": 0.1, "prompt": 0.02, "messages": 0.02}
    for label, least in shares.items():
        assert tally.share(label) >= least, label


def test_requests(case: Callable[[random.Random], str | None]) -> None:
    _check(fuzz("requests", case, count=2 * SHORT, seed=1, errors=(InvalidRequest,), depths=DEPTHS))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_many_requests(case: Callable[[random.Random], str | None]) -> None:
    _check(fuzz("requests", case, count=SOAK, seed=2, errors=(InvalidRequest,), depths=DEPTHS))
