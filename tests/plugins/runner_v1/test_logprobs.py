"""Log-probabilities of drawn tokens and of prompts are transformers' own, whole and in chunks, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from enginebay.messages import SamplingParams
from enginebay.testing import RunnerDriver, start_runner
from enginebay.worker.answers import ROWS_AT_ONCE
from support.logprobs import LogSoftmax, ask, gapless
from support.tiny_models import FAMILIES, VOCAB

NUM_BLOCKS = 96
TOLERANCE = 2e-4
HEADS = ("llama", "mistral-window", "gemma2", "cohere", "granite", "gpt2", "opt", "phi")
"""Families whose way from the last layer to the logits differs, or whose body has another name."""


def prompts(*lengths: int) -> dict[str, list[int]]:
    random = Random(4)
    return {str(length): [random.randrange(VOCAB) for _ in range(length)] for length in lengths}


@pytest.mark.parametrize(
    "family", [family if family in HEADS else pytest.param(family, marks=pytest.mark.soak) for family in FAMILIES]
)
def test_they_equal_transformers_log_softmax(family: str, tiny: Callable[[str], Path]) -> None:
    reference = LogSoftmax(tiny(family))
    with start_runner("v1", tiny(family), num_blocks=NUM_BLOCKS) as started:
        greedy = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=3, prompt_logprobs=2)
        for asked in greedy, replace(greedy, temperature=1.0, top_k=40, repetition_penalty=1.3):
            for chunk in None, 7:
                answers = ask(started, prompts(1, 2, 16, 17, 70), asked, num_blocks=NUM_BLOCKS, chunk=chunk)
                assert [len(entries) for _, entries in answers.values()] == [6, 7, 21, 22, 75]
                assert max(reference.largest_error(*answer) for answer in answers.values()) < TOLERANCE


def test_heads_are_tiny_models_that_exist() -> None:
    assert set(HEADS) <= set(FAMILIES)


def head_rows(runner: Any) -> list[int]:
    """The list to which every later pass through the head appends its number of rows."""
    rows: list[int] = []
    runner._model.get_output_embeddings().register_forward_hook(lambda _m, args, _out: rows.append(args[0].shape[1]))
    return rows


def test_only_so_many_rows_of_logits_exist_at_one_time(tiny: Callable[[str], Path]) -> None:
    long = 3 * ROWS_AT_ONCE + 8
    with start_runner("v1", tiny("llama"), num_blocks=NUM_BLOCKS) as started:
        rows = head_rows(started.runner)
        driver = RunnerDriver(started.runner, num_blocks=NUM_BLOCKS, block_size=16)
        driver.add("asks", prompts(long)[str(long)], SamplingParams(max_tokens=2, ignore_eos=True, prompt_logprobs=0))
        driver.add("does not", prompts(long)[str(long)], SamplingParams(max_tokens=2, ignore_eos=True))
        driver.run()
        assert rows == [2, ROWS_AT_ONCE, ROWS_AT_ONCE, ROWS_AT_ONCE, 7, 2]  # two that draw, the prompt, two that draw
        assert len(gapless(driver.prompt_logprobs["asks"])) == long - 1


def test_who_does_not_ask_changes_nothing(tiny: Callable[[str], Path]) -> None:
    """Asking changes no token, and one that asks gets the same beside others as alone."""
    asked = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=2, prompt_logprobs=2)
    plain = SamplingParams(max_tokens=6, ignore_eos=True)
    some = prompts(5, 33, 60)
    with start_runner("v1", tiny("qwen3"), num_blocks=NUM_BLOCKS) as started:
        alone = ask(started, {"33": some["33"]}, asked, num_blocks=NUM_BLOCKS)["33"]
        driver = RunnerDriver(started.runner, num_blocks=NUM_BLOCKS, block_size=16)
        for request_id, prompt in some.items():
            driver.add(request_id, prompt, asked if request_id == "33" else plain)
        driver.run(chunk=16)
    assert list(driver.logprobs) == list(driver.prompt_logprobs) == ["33"]
    assert driver.requests["33"].token_ids == alone[0]
    beside = [*gapless(driver.prompt_logprobs["33"]), *driver.logprobs["33"]]
    assert [entry.logprob for entry in beside] == pytest.approx([entry.logprob for entry in alone[1]], abs=TOLERANCE)


def test_a_prompt_computed_again_is_told_again(tiny: Callable[[str], Path]) -> None:
    """After a preemption the entries come from the prompt's second token on once more; the core keeps the first."""
    asked = SamplingParams(max_tokens=6, ignore_eos=True, prompt_logprobs=1)
    with start_runner("v1", tiny("llama"), num_blocks=NUM_BLOCKS) as started:
        driver = RunnerDriver(started.runner, num_blocks=NUM_BLOCKS, block_size=16)
        driver.add("a", prompts(20)["20"], asked)
        driver.step({"a": 12})
        driver.step({"a": 8})
        driver.step({"a": 1})
        driver.preempt("a")
        driver.run(chunk=15)
    told = driver.prompt_logprobs["a"]
    assert [(chunk.start, len(chunk.entries)) for chunk in told] == [(1, 12), (13, 7), (1, 15), (16, 4)]
    first, again = gapless(told[:2]), gapless(told[2:])
    assert [entry.logprob for entry in first] == pytest.approx([entry.logprob for entry in again], abs=TOLERANCE)


@pytest.mark.parametrize("chunk", [None, 4])
def test_nan_in_a_prompt_is_the_fault_of_its_request(tiny: Callable[[str], Path], chunk: int | None) -> None:
    asked = SamplingParams(max_tokens=3, ignore_eos=True, prompt_logprobs=1)
    with start_runner("v1", tiny("qwen3"), num_blocks=NUM_BLOCKS) as started:
        embedding = started.runner._model.model.embed_tokens  # type: ignore[attr-defined]  # the test breaks the model
        embedding.weight = torch.nn.Parameter(embedding.weight.clone(), requires_grad=False)
        embedding.weight[77] = torch.nan
        driver = RunnerDriver(started.runner, num_blocks=NUM_BLOCKS, block_size=16)
        driver.add("good", [3, 4, 5, 6, 7, 8, 9], asked)
        driver.add("bad", [3, 77, 5, 6, 7, 8, 9], asked)
        driver.run(chunk=chunk)
    assert driver.faults == {"bad": "the model's logits for the prompt are NaN: no log-probability is known"}
    assert list(driver.prompt_logprobs) == ["good"]
    assert driver.requests["bad"].generated == []


def test_the_model_is_whole_again_afterwards(tiny: Callable[[str], Path]) -> None:
    with start_runner("v1", tiny("llama"), num_blocks=NUM_BLOCKS) as started:
        model = started.runner._model  # type: ignore[attr-defined]  # the test looks inside
        before = set(vars(model.get_decoder())), len(model.get_decoder()._forward_hooks)
        ask(started, prompts(9), SamplingParams(max_tokens=2, logprobs=1, prompt_logprobs=1), num_blocks=NUM_BLOCKS)
        assert (set(vars(model.get_decoder())), len(model.get_decoder()._forward_hooks)) == before


def test_batch_invariance_makes_them_the_same_bit_for_bit(tiny: Callable[[str], Path]) -> None:
    """Of a model whose head caps its logits."""
    asked = SamplingParams(max_tokens=4, ignore_eos=True, logprobs=2, prompt_logprobs=2)
    with start_runner("v1", tiny("gemma2"), num_blocks=NUM_BLOCKS, batch_invariant=True) as started:
        decoder = started.runner._model.get_decoder()  # type: ignore[attr-defined]  # the test looks inside
        own = vars(decoder).get("forward")
        together = ask(started, prompts(3, 20, 70), asked, num_blocks=NUM_BLOCKS)
        assert ask(started, prompts(3, 20, 70), asked, num_blocks=NUM_BLOCKS, chunk=7) == together
        for length in (20, 70):
            alone = ask(started, {"one": prompts(3, 20, 70)[str(length)]}, asked, num_blocks=NUM_BLOCKS)
            assert alone["one"] == together[str(length)]
        assert vars(decoder).get("forward") is own, "the body lost what batch invariance gave it"
