"""Groups with windows through a whole engine: the tokens are transformers' own, and the cache ends as it began."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from enginebay import LLM, SamplingParams
from support.parity import Reference
from support.tiny_families import VOCAB, WINDOW

COMMON = [(5 * token + token * token) % VOCAB for token in range(4 * WINDOW)]
PROMPTS = [[*COMMON, *((11 * index + token) % VOCAB for token in range(3 + 9 * index))] for index in range(5)]
PARAMS = SamplingParams(max_tokens=2 * WINDOW, ignore_eos=True)


@pytest.mark.parametrize("family", ["gemma2", pytest.param("mistral-window", marks=pytest.mark.soak)])
def test_tokens_with_hits_preemption_and_chunks(
    tiny: Callable[[str], Path], reference_of: Callable[[str], Reference], family: str
) -> None:
    small = 20 if family == "mistral-window" else 84
    settings = {
        "model": {"path": str(tiny(family))},
        "runner": {"use": "v1"},
        "cache": {"num_blocks": small, "block_size": 4},
        "scheduler": {"max_num_batched_tokens": 24, "max_num_seqs": 8},
    }
    with LLM(settings) as llm:
        for _ in range(2):
            answers = [list(one.token_ids) for one in llm.generate(PROMPTS, PARAMS)]
            assert not reference_of(family).compare(PROMPTS, answers).faults
        stats = llm.stats().scheduler
        assert stats.num_free_blocks == stats.num_blocks
        assert stats.prefix_hits > 0
        assert stats.preemptions > 0 or family != "gemma2", "a request in windows alone hardly grows"
        llm.reset_prefix_cache()
        assert llm.stats().scheduler.num_cached_blocks == 0
