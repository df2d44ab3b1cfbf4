"""SmolLM2 under JSON schemas: every answer parses and satisfies its schema, or was cut at max_tokens and says so."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from enginebay import LLM, FinishReason, SamplingParams, StructuredOutput
from support.shapes import asked

PIECE = 50


def _ask(folder: Path, count: int, *, max_tokens: int, piece: int) -> tuple[int, int]:
    """How many were asked, and how many of them were cut. All of a piece run at once."""
    requests, cut = asked(count), 0
    with LLM(sets=[f"model.path={folder}", "model.dtype=float32", f"scheduler.max_num_seqs={piece}"]) as llm:
        for begin in range(0, count, piece):
            now = requests[begin : begin + piece]
            params = [
                SamplingParams(
                    max_tokens=max_tokens,
                    temperature=0.0 if number % 2 else 0.8,
                    seed=begin + number,
                    structured=StructuredOutput.of_schema(schema),
                )
                for number, (_, schema) in enumerate(now)
            ]
            answers = llm.generate([text for text, _ in now], params)
            for (text, schema), answer in zip(now, answers, strict=True):
                if answer.finish_reason is FinishReason.LENGTH:
                    assert answer.usage.completion_tokens == max_tokens
                    cut += 1
                    continue
                assert answer.finish_reason is FinishReason.STOP, text
                jsonschema.validate(json.loads(answer.text), schema)
    return count, cut


def test_thirty_answers_keep_their_schemas(smollm2: Path) -> None:
    count, cut = _ask(smollm2, 30, max_tokens=32, piece=30)
    print(f"{cut} of {count} were cut at 32 tokens")
    assert cut <= count * 4 // 5, "so short an answer is often cut, and those of two shapes in ten never are"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_five_hundred_answers_keep_their_schemas(smollm2: Path) -> None:
    count, cut = _ask(smollm2, 500, max_tokens=256, piece=PIECE)
    print(f"{cut} of {count} were cut at 256 tokens")
    assert cut <= count // 20
