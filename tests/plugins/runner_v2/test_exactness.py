"""In fp32 the tokens of v2 are those of transformers' ``generate``, natively and as Python code, for every family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from enginebay.messages import SamplingParams
from enginebay.testing import RunnerDriver, start_runner
from enginebay_runner_v2.capturable import NOT_CAPTURED
from support.exactness import FEW, NUM_BLOCKS, SHORT, Case
from support.parity import Reference
from support.tiny_models import FAMILIES


@pytest.fixture
def case(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> Iterator[Case]:
    family, execution = request.param
    with start_runner("v2", tiny(family), num_blocks=NUM_BLOCKS, options={"compile": execution}) as started:
        yield Case(started, Reference(tiny(family)), SHORT, FEW)


CAPTURED = sorted(family for family, (architecture, _) in FAMILIES.items() if architecture not in NOT_CAPTURED)
FEW_FAMILIES = ("gemma2", "gpt2", "llama", "mistral-window", "phi", "qwen2-mixed-window", "qwen3")
"""What differs for the kernels: norms, softcap, biases, windows, groups, heads, rotations by half or of a part."""


def ways(families: Sequence[str], execution: str) -> list[Any]:
    return [pytest.param((family, execution), id=f"{family}-{execution}") for family in families]


def compare(case: Case) -> None:
    assert len({token for answer in case.expected for token in answer}) >= 8, "the model says the same all the time"
    case.check(case.answers(shuffle=3))
    case.check(case.answers(chunk=7, shuffle=4))


@pytest.mark.parametrize("case", ways(FEW_FAMILIES, "wait"), indirect=True)
def test_tokens_equal_generate(case: Case) -> None:
    compare(case)


@pytest.mark.soak
@pytest.mark.parametrize("case", [*ways(CAPTURED, "wait"), *ways(CAPTURED, "off")], indirect=True)
def test_tokens_of_every_family_equal_generate(case: Case) -> None:
    compare(case)


@pytest.mark.parametrize("case", [*ways(["llama"], "off"), *ways(["gemma2"], "wait")], indirect=True)
def test_log_probabilities_are_those_of_the_log_softmax(case: Case) -> None:
    prompt, answer = case.prompts[-1], case.expected[-1]
    params = SamplingParams(max_tokens=len(answer), ignore_eos=True, logprobs=0, prompt_logprobs=0)
    driver = RunnerDriver(case.started.runner, num_blocks=NUM_BLOCKS, block_size=16)
    driver.add("a", prompt, params)
    assert driver.run(chunk=7) == {"a": answer}
    with torch.inference_mode():
        ids = torch.tensor([[*prompt, *answer]])
        expected = torch.log_softmax(case.reference.model(input_ids=ids, use_cache=False).logits[0].double(), dim=-1)
    entries = [entry for chunk in driver.prompt_logprobs["a"] for entry in chunk.entries] + driver.logprobs["a"]
    assert len(entries) == len(prompt) - 1 + len(answer)
    for position, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(float(expected[position, ids[0, position + 1]]), abs=2e-4)
