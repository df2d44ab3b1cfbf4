"""Two tensor ranks under torchrun answer as transformers does, and as one worker: SmolLM2 and three tiny models."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.text import Tokenizer
from support.parity import Reference, Verdict, cut_prompts, shipped_text
from support.tiny_models import make_model
from support.torchrun_answers import torchrun_answers

TINY = ("llama", "qwen2", "qwen3")
MAX_TOKENS = 24


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_ranks_answer_as_transformers_does(tmp_path: Path, smollm2: Path) -> None:  # X17
    tiny = [make_model(tmp_path / family, family) for family in TINY]
    short = [[(7 * index + token) % 199 for token in range(1 + index)] for index in range(32)]
    prompts = [cut_prompts(Tokenizer.from_folder(smollm2).encode(shipped_text()), 32), *[short] * len(tiny)]
    configs = [
        {
            "model": {"path": str(folder), "dtype": "float32"},
            "executor": {"use": "external_launcher"},
            "parallel": {"tensor_parallel_size": 2},
        }
        for folder in (smollm2, *tiny)
    ]
    answered = torchrun_answers(tmp_path / "run", configs, prompts, MAX_TOKENS)
    total = Verdict()
    for folder, asked, (zero, one) in zip((smollm2, *tiny), prompts, answered, strict=True):
        assert zero == one
        assert [len(answer) for answer in zero] == [MAX_TOKENS] * len(asked)
        total.add(Reference(folder).compare(asked, zero))
    total.check()
