"""Both runners give the same fp32 tokens with SmolLM2 to requests of every kind, in chunks, with preemptions.

6 requests in the suite, 64 with ``-m soak``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enginebay import LLM, SamplingParams
from enginebay.text import Tokenizer
from support.parity import cut_prompts, shipped_text

KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"logprobs": 3, "prompt_logprobs": 1},
    {"temperature": 0.8, "seed": 5},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.3},
    {"temperature": 0.7, "top_p": 0.9, "n": 2, "seed": 9},
)
RUNNERS = {"v1": ("runner.use=v1",), "v2": ("runner.use=v2", "runner.options.compile=wait")}

SHORT, LONG = (6, 300, 8, 32), (64, 600, 32, 48)
"""Requests, the most tokens of a prompt, those of an answer, and blocks of a cache in which some are preempted."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("size", [SHORT, pytest.param(LONG, marks=pytest.mark.soak)], ids=["short", "long"])
def test_they_say_the_same(smollm2: Path, size: tuple[int, int, int, int]) -> None:
    count, longest, tokens, blocks = size
    tight = (f"cache.num_blocks={blocks}", "scheduler.max_num_batched_tokens=64")
    prompts = [prompt[:longest] for prompt in cut_prompts(Tokenizer.from_folder(smollm2).encode(shipped_text()), count)]
    asked = [SamplingParams(max_tokens=tokens, ignore_eos=True, **KINDS[index % len(KINDS)]) for index in range(count)]
    told: dict[str, list[Any]] = {}
    for name, sets in RUNNERS.items():
        with LLM(sets=[f"model.path={smollm2}", "model.dtype=float32", *tight, *sets]) as llm:
            told[name] = llm.generate(prompts, asked)
            assert llm.in_force["execution"] == {"v1": "eager", "v2": "graph, native"}[name]
            print(f"{name}: {llm.stats().scheduler.preemptions} preemptions")
            assert llm.stats().scheduler.preemptions > 0
    for number, (one, other) in enumerate(zip(told["v1"], told["v2"], strict=True)):
        ours, theirs = ([list(choice.token_ids) for choice in answer.choices] for answer in (one, other))
        assert ours == theirs, f"request {number}: {KINDS[number % len(KINDS)]}"
