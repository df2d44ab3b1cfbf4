"""With ``[engine] batch_invariant`` a token's logits are the same bits alone, in a batch, in chunks and computed again
from any point, in fp32 and bf16. 3,000 points of each with ``-m soak``, 36 in the suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from enginebay import LLM, SamplingParams
from enginebay.testing import start_runner
from enginebay.text import Tokenizer
from support.invariance import Walk
from support.parity import shipped_text

pytestmark = pytest.mark.timeout(3600)

SHORT = (7, 6, 36)
LONG = (50, 62, 3000)
"""Sequences, tokens that each is continued by, and points at which they are taken up again."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Two only wait for each other where others work too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def prompts(folder: Path, count: int) -> list[list[int]]:
    """Of 5 to 24 tokens."""
    ids = Tokenizer.from_folder(folder).encode(shipped_text())
    return [list(ids[300 * index : 300 * index + 5 + index * 20 // count]) for index in range(count)]


@pytest.mark.parametrize("size", [SHORT, pytest.param(LONG, marks=pytest.mark.soak)], ids=["short", "long"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_are_bit_equal_however_they_are_computed(smollm2: Path, dtype: str, size: tuple[int, int, int]) -> None:
    sequences, steps, points = size
    with start_runner("v1", smollm2, dtype=dtype, num_blocks=512, batch_invariant=True) as started:
        walk = Walk(started.runner, prompts(smollm2, sequences), steps)
        seen = walk.resume(walk.points(points))
    print(f"{dtype}, mode on: {seen}")
    assert seen.points == points
    assert (seen.equal, seen.flips) == (points, 0), seen.first


@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_agreement_without_the_mode_is_reported(smollm2: Path, dtype: str) -> None:
    """Nothing is promised there, so only that it was looked at is asserted."""
    sequences, steps, points = LONG
    few = points // 6
    with start_runner("v1", smollm2, dtype=dtype, num_blocks=512) as started:
        walk = Walk(started.runner, prompts(smollm2, sequences), steps)
        seen = walk.resume(walk.points(few))
    print(f"{dtype}, mode off: {seen}")
    assert seen.points == few


@pytest.mark.soak
def test_an_engine_that_preempts_answers_as_one_with_room(smollm2: Path) -> None:
    """Drawn at T = 1 in bf16, where one bit is enough to go another way; a different batch at nearly every step."""
    texts = [prompt[:20] + prompt[:20] for prompt in prompts(smollm2, 10)[5:]]
    params = [SamplingParams(max_tokens=14, temperature=1.0, seed=seed, ignore_eos=True) for seed in range(len(texts))]
    sets = [f"model.path={smollm2}", "model.dtype=bfloat16", "engine.batch_invariant=true", "worker.threads=1"]
    sets += ["cache.prefix_caching=false", "scheduler.max_num_batched_tokens=32"]
    with LLM(sets=[*sets, "cache.num_blocks=128"]) as roomy:
        expected = roomy.generate(texts, params)
    with LLM(sets=[*sets, "cache.num_blocks=6", "model.max_model_len=64"]) as narrow:
        answers = narrow.generate(texts, params)
    assert sum(completion.usage.preemptions for completion in expected) == 0
    assert sum(completion.usage.preemptions for completion in answers) >= 2
    assert [answer.token_ids for answer in answers] == [completion.token_ids for completion in expected]
