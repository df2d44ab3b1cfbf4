"""In fp32 the tokens are those of transformers' ``generate``, however the work is cut, dealt out and batched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from enginebay.messages import SamplingParams
from enginebay.testing import RunnerDriver, start_runner
from enginebay.worker.probing.known import FAMILIES as ALLOWED
from enginebay_runner_v1.scores import ScoreRule
from support.exactness import FEW, LONG, MANY, NUM_BLOCKS, SHORT, Case
from support.parity import Reference
from support.tiny_models import FAMILIES


@pytest.fixture
def case(
    request: pytest.FixtureRequest, tiny: Callable[[str], Path], reference_of: Callable[[str], Reference]
) -> Iterator[Case]:
    with start_runner("v1", tiny(request.param), num_blocks=NUM_BLOCKS) as started:
        yield Case(started, reference_of(request.param), SHORT, FEW)


@pytest.fixture
def long_case(
    request: pytest.FixtureRequest, tiny: Callable[[str], Path], reference_of: Callable[[str], Reference]
) -> Iterator[Case]:
    with start_runner("v1", tiny(request.param), num_blocks=NUM_BLOCKS) as started:
        yield Case(started, reference_of(request.param), LONG, MANY)


def test_every_architecture_of_the_list_has_a_tiny_model() -> None:
    assert {architecture for architecture, _ in FAMILIES.values()} == set(ALLOWED)


@pytest.mark.parametrize("case", sorted(FAMILIES), indirect=True)
def test_tokens_equal_generate(case: Case) -> None:
    assert len({token for answer in case.expected for token in answer}) >= 8, "the model says the same all the time"
    case.check(case.answers(shuffle=3))
    case.check(case.answers(chunk=7, shuffle=4))
    last = len(case.prompts) - 1
    assert case.answers(which=last) == [case.expected[last]]


@pytest.mark.parametrize("case", sorted(FAMILIES), indirect=True)
def test_log_probabilities_are_those_of_the_log_softmax(case: Case) -> None:
    """Scales and caps between the last layer and the logits are each family's own."""
    prompt, answer = case.prompts[-1], case.expected[-1]
    params = SamplingParams(max_tokens=len(answer), ignore_eos=True, logprobs=0, prompt_logprobs=0)
    driver = RunnerDriver(case.started.runner, num_blocks=NUM_BLOCKS, block_size=16)
    driver.add("a", prompt, params)
    assert driver.run(chunk=7) == {"a": answer}
    driver.step({})
    with torch.inference_mode():
        ids = torch.tensor([[*prompt, *answer]])
        expected = torch.log_softmax(case.reference.model(input_ids=ids, use_cache=False).logits[0].double(), dim=-1)
    entries = [entry for chunk in driver.prompt_logprobs["a"] for entry in chunk.entries] + driver.logprobs["a"]
    assert len(entries) == len(prompt) - 1 + len(answer)
    for position, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(float(expected[position, ids[0, position + 1]]), abs=2e-4)


@pytest.mark.soak
@pytest.mark.parametrize("long_case", sorted(FAMILIES), indirect=True)
def test_more_tokens_equal_generate(long_case: Case) -> None:
    case = long_case
    for chunk in (None, 1, 7):
        for shuffle in (None, 3):
            case.check(case.answers(chunk=chunk, shuffle=shuffle))
    case.check([case.answers(which=index)[0] for index in range(len(case.prompts))])


@pytest.mark.parametrize("case", ["llama", "mistral-window", "gpt-oss"], indirect=True)
def test_what_blocks_held_before_is_never_read(case: Case) -> None:
    """NaN in every slot of the cache, as a faulty request may leave it: 0 times NaN would still be NaN."""
    for chunk in (None, 5):
        for layer in case.started.runner._cache.pages:  # type: ignore[attr-defined]  # the test spoils it from within
            for pages in layer:
                pages.fill_(torch.nan)
        assert case.answers(chunk=chunk, shuffle=1) == case.expected


# how the comparison is known to fail: what a runner may get wrong, one at a time


def _rule_changed(monkeypatch: pytest.MonkeyPatch, change: Callable[[ScoreRule], ScoreRule]) -> None:
    original = ScoreRule.of
    monkeypatch.setattr(ScoreRule, "of", lambda options: change(original(options)))


def _windows_moved(case: Case, change: int) -> None:
    runner: Any = case.started.runner
    runner._groups = tuple(replace(group, window=group.window and group.window + change) for group in runner._groups)
    runner._bind(NUM_BLOCKS * len(runner._groups))


@pytest.mark.parametrize("case", sorted(FAMILIES), indirect=True)
def test_what_is_changed_on_purpose_is_noticed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each window by one token, each scale, cap and sink."""
    runner: Any = case.started.runner
    groups, rules = runner._groups, []

    def rescaled(rule: ScoreRule) -> ScoreRule:
        rules.append(rule)
        return replace(rule, scale=rule.scale * 1.3)

    changes: dict[str, Callable[[ScoreRule], ScoreRule]] = {"scale": rescaled}
    unnoticed = []
    while changes:
        name, change = changes.popitem()
        with monkeypatch.context() as patch:
            _rule_changed(patch, change)
            if not case.differs(case.answers()):
                unnoticed.append(name)
        if name == "scale" and rules[0].softcap is not None:
            changes["cap"] = lambda rule: replace(rule, softcap=rule.softcap and rule.softcap * 1.5)
            changes["no cap"] = lambda rule: replace(rule, softcap=None)
        if name == "scale" and rules[0].sinks is not None:
            changes["sinks"] = lambda rule: replace(rule, sinks=rule.sinks if rule.sinks is None else rule.sinks + 0.5)
            changes["no sinks"] = lambda rule: replace(rule, sinks=None)
    for by in (-1, 1) if any(group.window for group in groups) else ():
        _windows_moved(case, by)
        if not case.differs(case.answers()):
            unnoticed.append(f"window {by:+}")
        runner._groups = groups
    assert not unnoticed
