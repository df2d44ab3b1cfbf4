"""Log-probabilities of SmolLM2, of its prompts and of what it says, are transformers' own within 2e-4 in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from enginebay.messages import SamplingParams
from enginebay.testing import StartedRunner, start_runner
from enginebay.text import Tokenizer
from support.logprobs import LogSoftmax, ask
from support.parity import cut_prompts, shipped_text

NUM_BLOCKS = 160


@pytest.fixture(scope="module")
def started(smollm2: Path) -> Iterator[StartedRunner]:
    with start_runner("v1", smollm2, num_blocks=NUM_BLOCKS) as started:
        yield started


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> LogSoftmax:
    return LogSoftmax(smollm2)


@pytest.mark.parametrize("chunk", [None, 7], ids=["whole", "chunks of 7"])
def test_they_equal_transformers_log_softmax(
    smollm2: Path, started: StartedRunner, reference: LogSoftmax, chunk: int | None
) -> None:
    texts = cut_prompts(Tokenizer.from_folder(smollm2).encode(shipped_text()), 5)[: 3 if chunk is None else 2]
    asked = SamplingParams(max_tokens=8, ignore_eos=True, temperature=1.0, logprobs=20, prompt_logprobs=3)
    answers = ask(started, {str(i): text for i, text in enumerate(texts)}, asked, num_blocks=NUM_BLOCKS, chunk=chunk)
    errors = [reference.largest_error(*answer) for answer in answers.values()]
    print(f"{sum(len(entries) for _, entries in answers.values())} tokens, largest errors {errors}")
    assert max(errors) < 2e-4
