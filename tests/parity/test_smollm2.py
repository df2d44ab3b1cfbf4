"""The engine's fp32 greedy tokens with SmolLM2 are transformers' own: all at once, in chunks, preempted, from a warm
prefix cache, and one by one. 4 prompts of 24 tokens by runner v2 in the suite; 64 of 64, and v1, with ``-m soak``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from enginebay import LLM, SamplingParams
from enginebay.text import Tokenizer
from support.parity import Reference, Verdict, cut_prompts, shipped_text

Compare = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]]], Verdict]
SHORT, WHOLE = 4, 64
MAX_TOKENS = {SHORT: 24, WHOLE: 64}
"""By the number of prompts."""
PREEMPTIONS = {SHORT: 1, WHOLE: 20}
"""How many the tiny cache must cause, by the number of prompts."""

RUNNERS = {"v2": ("runner.use=v2", "runner.options.compile=wait"), "v1": ("runner.use=v1",)}

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module", params=["v2", pytest.param("v1", marks=pytest.mark.soak)])
def runner(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The settings of each runner in turn."""
    return RUNNERS[request.param]


@pytest.fixture(scope="module", params=[SHORT, pytest.param(WHOLE, marks=pytest.mark.soak)], ids="{}-prompts".format)
def prompts(request: pytest.FixtureRequest, smollm2: Path) -> list[list[int]]:
    """Of 5 to 600 tokens; in the suite, those between the shortest and the longest are cut to a third."""
    made = cut_prompts(Tokenizer.from_folder(smollm2).encode(shipped_text()), request.param)
    if request.param == SHORT:
        made[1:-1] = [prompt[: len(prompt) // 3] for prompt in made[1:-1]]
    return made


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> Reference:
    return Reference(smollm2)


@pytest.fixture(scope="module")
def total() -> Iterator[Verdict]:
    """The sum of all comparisons of this module; near ties are rare in all of them together."""
    total = Verdict()
    yield total
    total.check()


@pytest.fixture
def compare(reference: Reference, total: Verdict) -> Compare:
    """Compare answers with the reference: no fault, and counted in the total."""

    def compare(prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Verdict:
        verdict = reference.compare(prompts, answers)
        assert not verdict.faults, verdict.faults
        total.add(verdict)
        return verdict

    return compare


def engine(folder: Path, *sets: str) -> LLM:
    return LLM(sets=[f"model.path={folder}", "model.dtype=float32", *sets])


@pytest.fixture(scope="module")
def roomy(smollm2: Path, runner: tuple[str, ...]) -> Iterator[LLM]:
    """An engine with room for all prompts at once."""
    with engine(smollm2, "cache.num_blocks=3072", *runner) as llm:
        yield llm


@pytest.fixture
def params(prompts: list[list[int]]) -> SamplingParams:
    return SamplingParams(max_tokens=MAX_TOKENS[len(prompts)], ignore_eos=True)


def answers(llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[int]]:
    completions = llm.generate(prompts, params)
    assert [len(completion.token_ids) for completion in completions] == [params.max_tokens] * len(prompts)
    return [list(completion.token_ids) for completion in completions]


def spread(prompts: list[list[int]], count: int) -> list[list[int]]:
    """``count`` of the prompts, the shortest and the longest among them."""
    return [prompts[index * (len(prompts) - 1) // (count - 1)] for index in range(count)]


def test_all_at_once_and_again_from_the_warm_prefix_cache(
    roomy: LLM, compare: Compare, prompts: list[list[int]], params: SamplingParams
) -> None:
    cold = answers(roomy, prompts, params)
    compare(prompts, cold)
    hits = roomy.stats().scheduler.prefix_hits
    warm = roomy.generate(prompts, params)
    compare(prompts, [completion.token_ids for completion in warm])
    assert roomy.stats().scheduler.prefix_hits > hits
    whole_blocks = [(len(prompt) - 1) // 16 * 16 for prompt in prompts]
    assert [completion.usage.cached_tokens for completion in warm] == whole_blocks


def test_in_chunks(
    smollm2: Path, runner: tuple[str, ...], compare: Compare, prompts: list[list[int]], params: SamplingParams
) -> None:
    with engine(smollm2, "cache.num_blocks=3072", "scheduler.max_num_batched_tokens=64", *runner) as llm:
        compare(prompts, answers(llm, prompts, params))


def test_with_a_cache_so_small_that_requests_are_preempted(
    smollm2: Path, runner: tuple[str, ...], compare: Compare, prompts: list[list[int]], params: SamplingParams
) -> None:
    """48 blocks hold one long request with little to spare, and with chunks of 64 tokens others begin beside it.

    By v1 in the mode in which what is computed again is equal bit for bit.
    """
    sets = ["cache.num_blocks=48", "scheduler.max_num_batched_tokens=64", *runner]
    if runner == RUNNERS["v1"]:
        sets.append("engine.batch_invariant=true")
    with engine(smollm2, *sets) as llm:
        completions = llm.generate(prompts, params)
        counted = llm.stats().scheduler
    preemptions = sum(completion.usage.preemptions for completion in completions)
    print(f"{preemptions} preemptions")
    assert preemptions >= PREEMPTIONS[len(prompts)]
    assert counted.preemptions == preemptions
    assert counted.num_free_blocks == counted.num_blocks
    compare(prompts, [completion.token_ids for completion in completions])


def test_one_by_one_and_against_generate_itself(
    roomy: LLM, reference: Reference, compare: Compare, prompts: list[list[int]], params: SamplingParams
) -> None:
    """3 of the prompts, or all 64 in the soak."""
    chosen = prompts if len(prompts) == WHOLE else spread(prompts, 3)
    alone = [answers(roomy, [prompt], params)[0] for prompt in chosen]
    verdict = compare(chosen, alone)
    literal = [reference.generate(prompt, params.max_tokens) for prompt in chosen]
    unequal = [index for index, (ours, theirs) in enumerate(zip(alone, literal, strict=True)) if ours != theirs]
    assert len(unequal) <= len(verdict.near_ties), f"prompts {unequal} differ from generate without a near tie"


def test_the_comparison_can_fail(reference: Reference, prompts: list[list[int]]) -> None:
    prompt = prompts[1]
    right = reference.generate(prompt, 8)
    assert reference.compare([prompt], [right]).faults == []
    wrong = [*right[:5], right[5] + 1, *right[6:]]
    verdict: Verdict = reference.compare([prompt], [wrong])
    with pytest.raises(AssertionError, match=f"output 5: {right[5] + 1} instead of {right[5]}"):
        verdict.check()
