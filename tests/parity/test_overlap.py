"""200 mixed requests on a real model: the same tokens with steps one by one, overlapped, and with proposals."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from enginebay import LLM, SamplingParams
from enginebay.messages import StructuredOutput

SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]}'
)
TEXTS = (
    "Write a story about a cat and a dog.",
    "List the numbers:\n1\n2\n3\n4\n5\n",
    "Repeat: apple pear apple pear apple pear apple pear apple",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return",
)
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    {"logprobs": 2},
    {"stop": ("the", "."), "min_tokens": 5},
    {"temperature": 0.7, "n": 2},
    {"structured": StructuredOutput(json_schema=SCHEMA)},
    {"structured": StructuredOutput(regex=r"[a-z ]{10,40}\."), "temperature": 0.9},
)
WAYS = {
    "one by one": ("scheduler.overlap=false",),
    "overlapped": ("scheduler.overlap=true",),
    "proposals": ("scheduler.overlap=false", "speculation.use=ngram"),
    "overlapped, with proposals": ("scheduler.overlap=true", "speculation.use=ngram"),
}


def answers(smollm2: Path, sets: tuple[str, ...], count: int) -> tuple[list[Any], int]:
    """What each request was told, and how many proposals held."""
    random = Random(11)
    prompts = [f"{random.choice(TEXTS)} ({random.randrange(9)})" for _ in range(count)]
    asks = [
        SamplingParams(**{"max_tokens": random.randrange(8, 33), "seed": index, **KINDS[index % len(KINDS)]})
        for index in range(count)
    ]
    fixed = (f"model.path={smollm2}", "model.dtype=float32", "engine.batch_invariant=true", "cache.num_blocks=512")
    with LLM(sets=[*fixed, *sets]) as llm:
        told = llm.generate(prompts, asks)
        stats = llm.stats()
    return [[(one.token_ids, one.text, one.finish_reason) for one in each.choices] for each in told], (
        stats.accepted_tokens
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_200_mixed_requests_get_the_same_tokens_whatever_overlaps(smollm2: Path) -> None:
    expected, _ = answers(smollm2, WAYS["one by one"], 200)
    for name, sets in list(WAYS.items())[1:]:
        got, accepted = answers(smollm2, sets, 200)
        assert got == expected, name
        assert (accepted > 0) is ("speculation.use=ngram" in sets)
