"""However the model is shared out, and whoever runs its workers, the engine's greedy fp32 tokens are transformers' own.

One tiny model, 8 prompts and two ways in the suite; SmolLM2, three tiny architectures, 32 prompts and all ways with
``-m soak``. To have another executor compared, add a row to ``WAYS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from enginebay import LLM, SamplingParams
from enginebay.text import Tokenizer
from support.outer_answers import dask_answers, torchrun_answers
from support.parity import Reference, cut_prompts, shipped_text
from support.tiny_models import VOCAB

Prompts = Sequence[Sequence[int]]
Answer = Callable[[Path, Sequence[str], Prompts, int], list[list[int]]]
"""(A folder to work in, the model's settings, prompts, how many tokens) → the tokens."""


def here(*sets: str) -> Answer:
    """Answered by an engine of this process with these settings."""

    def answer(_work: Path, model: Sequence[str], prompts: Prompts, max_tokens: int) -> list[list[int]]:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        with LLM(sets=[*model, *sets]) as llm:
            return [list(one.token_ids) for one in llm.generate([list(prompt) for prompt in prompts], params)]

    return answer


def torchrun(*sets: str) -> Answer:
    """Answered by an engine on each rank of torchrun, which say the same."""

    def answer(work: Path, model: Sequence[str], prompts: Prompts, max_tokens: int) -> list[list[int]]:
        zero, one = torchrun_answers(work, [*model, *sets], prompts, max_tokens)
        assert zero == one
        return zero

    return answer


def outsider(*sets: str) -> Answer:
    """Answered by an engine that has the example executor of examples/ on its path."""
    return lambda work, model, prompts, max_tokens: dask_answers(work, [*model, *sets], prompts, max_tokens)


TENSOR, STAGES = "parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=2"
WAYS: dict[str, Answer] = {
    "uni": here("executor.use=uni"),
    "mp": here("executor.use=mp"),
    "mp-tp2": here("executor.use=mp", TENSOR),
    "mp-pp2": here("executor.use=mp", STAGES),
    "ray-tp2": here("executor.use=ray", TENSOR),
    "torchrun-tp2": torchrun("executor.use=external_launcher", TENSOR),
    "dask-tp2": outsider("executor.use=dask", TENSOR),
}
"""How the same model is run; those of ``SHORT`` in the suite."""
SHORT = ("mp-tp2", "mp-pp2")
TINY = ("llama", "gemma2", "mixtral")
"""KV heads shared out and a tied head; scaled embeddings, windows and caps; experts."""

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def reference_of() -> Callable[[Path], Reference]:
    """transformers on a model, which answers each question once."""
    made: dict[Path, Reference] = {}

    def reference(folder: Path) -> Reference:
        if folder not in made:
            made[folder] = Reference(folder)
        return made[folder]

    return reference


def tiny_prompts(count: int) -> list[list[int]]:
    return [[(37 * index + 11 * place) % VOCAB for place in range(4 + 5 * index)] for index in range(count)]


def compare(reference: Reference, work: Path, folder: Path, way: str, prompts: Prompts, max_tokens: int) -> None:
    """This way's answers are the reference's, near ties apart."""
    model = (f"model.path={folder}", "model.dtype=float32", "cache.num_blocks=1600")
    answers = WAYS[way](work, model, prompts, max_tokens)
    assert [len(answer) for answer in answers] == [max_tokens] * len(prompts)
    print(way, end=": ")
    reference.compare(prompts, answers).check()


@pytest.mark.parametrize("way", SHORT)
def test_two_ranks_answer_as_one(
    tiny: Callable[[str], Path], reference_of: Callable[[Path], Reference], tmp_path: Path, way: str
) -> None:
    folder = tiny("llama")
    compare(reference_of(folder), tmp_path, folder, way, tiny_prompts(8), 12)


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", TINY)
def test_every_way_with_tiny_models(
    tiny: Callable[[str], Path], reference_of: Callable[[Path], Reference], tmp_path: Path, family: str, way: str
) -> None:
    folder = tiny(family)
    compare(reference_of(folder), tmp_path, folder, way, tiny_prompts(32), 32)


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_every_way_with_smollm2(
    smollm2: Path, reference_of: Callable[[Path], Reference], tmp_path: Path, way: str
) -> None:
    prompts = cut_prompts(Tokenizer.from_folder(smollm2).encode(shipped_text()), 32)
    prompts = [prompt[:100] for prompt in prompts]  # longer ones are those of test_smollm2.py
    compare(reference_of(smollm2), tmp_path, smollm2, way, prompts, 24)
