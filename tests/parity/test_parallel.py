"""However the model is shared out, and whoever runs its workers, the engine's greedy fp32 tokens are transformers' own.

One tiny model and 8 prompts in the suite; SmolLM2, three tiny architectures and 32 prompts with ``-m soak``. To have
another executor compared, add a row to ``WAYS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from enginebay import LLM, SamplingParams
from enginebay.text import Tokenizer
from support.parity import Reference, Verdict, cut_prompts, shipped_text
from support.tiny_models import VOCAB, make_model

Prompts = Sequence[Sequence[int]]
Answer = Callable[[Path, Prompts, SamplingParams], list[list[int]]]


def engine(*sets: str) -> Answer:
    """Answered by an engine with these settings."""

    def answer(folder: Path, prompts: Prompts, params: SamplingParams) -> list[list[int]]:
        common = (f"model.path={folder}", "model.dtype=float32", "cache.num_blocks=1600")
        with LLM(sets=[*common, *sets]) as llm:
            return [list(one.token_ids) for one in llm.generate([list(prompt) for prompt in prompts], params)]

    return answer


TENSOR, STAGES = "parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=2"
WAYS: dict[str, Answer] = {
    "uni": engine("executor.use=uni"),
    "mp": engine("executor.use=mp"),
    "mp-tp2": engine("executor.use=mp", TENSOR),
    "mp-pp2": engine("executor.use=mp", STAGES),
    "ray-tp2": engine("executor.use=ray", TENSOR),
}
"""How the same model is run; those of ``SHORT`` in the suite."""
SHORT = ("mp-tp2", "mp-pp2")
TINY = ("llama", "gemma2", "mixtral")
"""KV heads shared out and a tied head; scaled embeddings, windows and caps; experts."""

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = make_model(tmp_path_factory.mktemp(family) / "model", family)
        return made[family]

    return folder


def tiny_prompts(count: int) -> list[list[int]]:
    return [[(37 * index + 11 * place) % VOCAB for place in range(4 + 5 * index)] for index in range(count)]


def compare(folder: Path, prompts: Prompts, ways: Sequence[str], max_tokens: int) -> Verdict:
    """Every way's answers are the reference's, near ties apart."""
    reference, total = Reference(folder), Verdict()
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    for way in ways:
        answers = WAYS[way](folder, prompts, params)
        assert [len(answer) for answer in answers] == [max_tokens] * len(prompts)
        verdict = reference.compare(prompts, answers)
        assert not verdict.faults, (way, verdict.faults)
        total.add(verdict)
    total.check()
    return total


def test_two_ranks_answer_as_one(tiny: Callable[[str], Path]) -> None:
    compare(tiny("llama"), tiny_prompts(8), SHORT, 12)


@pytest.mark.soak
@pytest.mark.parametrize("family", TINY)
def test_every_way_with_tiny_models(tiny: Callable[[str], Path], family: str) -> None:
    compare(tiny(family), tiny_prompts(32), [*WAYS], 32)


@pytest.mark.soak
def test_every_way_with_smollm2(smollm2: Path) -> None:
    prompts = cut_prompts(Tokenizer.from_folder(smollm2).encode(shipped_text()), 32)
    compare(smollm2, prompts, [*WAYS], 64)
