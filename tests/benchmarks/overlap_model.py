"""Tokens a second of two engines with a real model, which differ in settings and answer in turn, as one JSON line.

Usage: python overlap_model.py MODEL REQUESTS TOKENS PAIRS KEY=VALUE ... -- KEY=VALUE ...: the settings of the two.
"spread=0" stands for an engine that has every running request in every step, whatever pipeline stages there are.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from unittest.mock import patch

from enginebay import LLM, SamplingParams

PROMPT, WARM_TOKENS = 32, 4


def start(model: str, sets: Sequence[str]) -> LLM:
    """An engine. Its scheduler is made once, here, so what another's is told does not reach it."""
    told = [f"model.path={model}", "cache.num_blocks=256", *(one for one in sets if one != "spread=0")]
    alone = patch("enginebay.engine.startup.core_parts.busy_stages", return_value=1)
    with alone if "spread=0" in sets else nullcontext():
        return LLM(sets=told)


def rate(llm: LLM, requests: int, tokens: int, turn: int) -> float:
    """Output tokens a second, with prompts that no turn before had."""
    prompts = [[(7 * one + 11 * place + 13 * turn) % 40_000 for place in range(PROMPT)] for one in range(requests)]
    begun = time.monotonic()
    answers = llm.generate(prompts, SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0))
    taken = time.monotonic() - begun
    assert all(len(answer.token_ids) == tokens for answer in answers)
    return requests * tokens / taken


def main(model: str, requests: int, tokens: int, pairs: int, sets: tuple[list[str], list[str]]) -> None:
    with start(model, sets[0]) as one, start(model, sets[1]) as other:
        rates: tuple[list[float], list[float]] = ([], [])
        for llm in (one, other):
            rate(llm, requests, WARM_TOKENS, 0)
        for turn in range(1, pairs + 1):
            for llm, own in zip((one, other), rates, strict=True):
                own.append(round(rate(llm, requests, tokens, turn), 1))
            print(rates, file=sys.stderr, flush=True)
    print(json.dumps({"one": rates[0], "other": rates[1]}))


if __name__ == "__main__":
    cut = sys.argv.index("--")
    requests, tokens, pairs = map(int, sys.argv[2:5])
    main(sys.argv[1], requests, tokens, pairs, (sys.argv[5:cut], sys.argv[cut + 1 :]))
